"""Send the rows that a file has: those that a logger could not send, or a copy of any others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..._tap.sinks import raise_all, reports
from ...errors import LogFileError, LogTypeError, LogValueError, SpoolaxError
from .._protocol.ending import Ending
from .._protocol.paths import StrPath
from .._protocol.record import Record
from .._read_jsonl import from_json
from ._delivery.locked_file import InUseError
from ._delivery.unsent_directory import UnsentDirectory
from ._delivery.unsent_file import UnsentFile
from ._delivery.unsent_header import read_header
from ._mlflow import MlflowLogger
from ._rows.row import TrackerRow, row_from_json, row_to_json
from ._tensorboard import TensorBoardLogger
from ._tracker import TrackerLogger
from ._trackio import TrackioLogger
from ._wandb import WandbLogger

TRACKERS: dict[str, type[TrackerLogger]] = {
    "mlflow": MlflowLogger,
    "tensorboard": TensorBoardLogger,
    "trackio": TrackioLogger,
    "wandb": WandbLogger,
}
BATCH = 1000  # Rows.
ABOUT = {"logger", "unique", "connected", "made_with"}  # What a header has to say.


def replay(
    path: StrPath, to: str | type[TrackerLogger] | TrackerLogger | None = None, **arguments: Any
) -> int:
    """Send the rows of a file, or of all files in a directory, to a tracker; return how many.

    A file that a logger left behind says which tracker and which run it is for, and is removed once
    everything in it has been sent. Files of a `JsonlLogger` can be sent as well, and stay.

    Args:
        path: The file, or a directory of files.
        to: Where to send a copy instead: "wandb", "tensorboard", "mlflow", "trackio", a logger
            class, or a logger that is not open yet. The file stays.
        arguments: Arguments of the logger, instead of those in the file, such as `mode="online"`.

    Examples:
        >>> import tempfile
        >>> from spoolax.loggers import JsonlLogger, TrackerLogger
        >>> class Prints(TrackerLogger):
        ...     def send(self, rows):
        ...         print(*[(row.step, row.scalars) for row in rows])
        >>> path = tempfile.mkdtemp() + "/log.jsonl"
        >>> with JsonlLogger(path) as logger:
        ...     logger.log({"loss": 0.5}, 3)
        >>> replay(path, to=Prints())
        (3, {'loss': 0.5})
        1
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return _replay_all(path, to, arguments)
    if not path.exists():
        raise LogFileError(f"There is no file {str(path)!r}.")
    run, start = read_header(path) or (None, 0)
    if run is not None and not run.keys() >= ABOUT:
        raise LogFileError(f"{str(path)!r} does not say which run its rows belong to.")
    if run is not None and to is None:
        made_with = dict(run["made_with"])
        if run["connected"] and made_with["resume"] == "never":
            made_with["resume"] = "allow"  # It exists by now.
        return _resume(path, _make(run["logger"], _updated(made_with, arguments)))
    if to is None:
        raise LogValueError(
            f"{str(path)!r} does not say which tracker it is for. Give `to=`, which is one of "
            f"{', '.join(map(repr, TRACKERS))}."
        )
    known = {} if run is None else _of_any_tracker(run["made_with"])
    logger = to if isinstance(to, TrackerLogger) else _make(to, _updated(known, arguments))
    return _copy(path, start, logger, is_ours=run is not None)


def _replay_all(directory: Path, to: Any, arguments: dict[str, Any]) -> int:
    if isinstance(to, TrackerLogger):
        raise LogTypeError(
            "The files of a directory cannot all go to one logger, as each is a run of its own. "
            f"Give the name of the tracker: `to={type(to).__name__!r}`."
        )
    sent, errors = 0, []
    for file in sorted(directory.glob("*.jsonl")):
        try:
            if read_header(file) is not None:
                sent += replay(file, to, **arguments)
        except InUseError:
            reports.warning("%s is in use, so it was left alone.", file)
        except (SpoolaxError, OSError) as error:  # Still send the others.
            if file.exists():  # Else another process has just sent it.
                errors.append(error)
    raise_all(errors, f"Some files of {str(directory)!r} could not be sent.")
    return sent


def _updated(made_with: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a logger was made with, some of them changed."""
    if "experiment" in arguments:  # It means the same as `project`.
        made_with = {name: value for name, value in made_with.items() if name != "project"}
    return {**made_with, **arguments}


def _make(tracker: Any, arguments: dict[str, Any]) -> TrackerLogger:
    """Make a logger of a class, which may also be given by name."""
    if isinstance(tracker, type) and issubclass(tracker, TrackerLogger):
        return tracker(**arguments)
    classes = {cls.__name__: cls for cls in _subclasses(TrackerLogger)} | TRACKERS
    if tracker not in classes:
        known = ", ".join(map(repr, TRACKERS))
        raise LogTypeError(
            f"{tracker!r} is not a known tracker: use one of {known}, or import the module that "
            "defines it."
        )
    return classes[tracker](**arguments)


def _subclasses(cls: type[TrackerLogger]) -> Iterator[type[TrackerLogger]]:
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def _of_any_tracker(made_with: dict[str, Any]) -> dict[str, Any]:
    """The arguments that mean the same to every tracker."""
    same = ("name", "project", "config", "tags", "group")
    return {name: value for name, value in made_with.items() if name in same}


def _resume(path: Path, logger: TrackerLogger) -> int:
    """Send what is left in a file, as the logger that left it would have."""
    file = UnsentFile(path, lag=logger.lag)  # Before anything else: it may be in use.
    logger._existing, logger.unique = file, file.run["unique"]
    if file.run.get("ended"):
        logger._replayed_ending = Ending(file.run["ended"])
    waiting = file.waiting
    try:
        with logger:
            logger.put("", 0)
    finally:
        file.close()  # If the logger could not even be opened.
        UnsentDirectory(path.parent).remove_if_empty()
    return waiting - file.waiting - logger._channel.refused.count


def _copy(path: Path, start: int, logger: TrackerLogger, is_ours: bool) -> int:
    """Send the rows of a file that stays as it is."""
    count, builder = 0, logger._builder

    def read(line: str) -> TrackerRow:
        if not is_ours:
            return builder.row(_record(line))
        row = row_from_json(line)
        return row._replace(time=builder.time_of(row.time, row.step))

    with logger, open(path, "rb") as file:
        file.seek(start)
        lines = _lines(file, read)
        while batch := list(itertools.islice(lines, BATCH)):
            logger.put("".join(batch), len(batch))
            count += len(batch)
    return count - logger._channel.waiting - logger._channel.refused.count


def _lines(file: BinaryIO, read: Callable[[str], TrackerRow]) -> Iterator[str]:
    """The rows of a file as lines of JSON, without lines that a crash cut off."""
    skipped = 0
    for line in file:
        try:
            yield row_to_json(read(line.decode())) + "\n"
        except (ValueError, KeyError, TypeError, AttributeError):
            skipped += 1
    if skipped:
        reports.warning("Skipped %d lines of %s that are not entries.", skipped, file.name)


def _record(line: str) -> Record:
    """An entry that a `JsonlLogger` wrote."""
    found = from_json(line)
    record = Record(found.pop("_step"), {})
    if isinstance(found.get("_tags"), list):
        record.tags = tuple(found.pop("_tags"))
    record.time = found.pop("_time", 0.0)
    for name, value in found.items():
        if isinstance(value, list):
            cells = np.array(value, object)
            logged = np.vectorize(lambda cell: cell is not None, otypes=[bool])(cells)
            if not logged.all():
                record.valid[name] = logged
            cells[~logged] = 0
            value = np.array(cells.tolist())
        if value is not None:
            record.values[name] = value
    return record
