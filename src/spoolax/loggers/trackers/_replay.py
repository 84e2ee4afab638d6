"""Send what could not be sent before."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..._tap.sinks import raise_all, reports
from ...errors import LogFileError, LogTypeError, LogValueError, SpoolaxError
from .._protocol.as_json import from_json
from .._protocol.paths import StrPath
from .._protocol.record import Record
from ._mlflow import MlflowLogger
from ._rows import Row, as_line, from_line
from ._spill import InUseError, Spill, head_of
from ._tensorboard import TensorBoardLogger
from ._tracker import TrackerLogger, remove_if_empty
from ._trackio import TrackioLogger
from ._wandb import WandbLogger

TRACKERS: dict[str, type[TrackerLogger]] = {
    "mlflow": MlflowLogger,
    "tensorboard": TensorBoardLogger,
    "trackio": TrackioLogger,
    "wandb": WandbLogger,
}
BATCH = 1000
ABOUT = {"logger", "unique", "connected", "made_with"}  # What a file has to say.


def replay(
    path: StrPath, to: str | type[TrackerLogger] | TrackerLogger | None = None, **words: Any
) -> int:
    """Send the rows of a file, or of all files in a directory, to a tracker; return how many.

    A file that a logger left behind knows the tracker and the run that it is for, and is removed
    when everything in it was sent. Other files, of a `JsonlLogger`, can be sent as well, and stay.

    Args:
        path: The file, or a directory of files.
        to: "wandb", "tensorboard", "mlflow", "trackio", a class of loggers, or a logger that is not
            open yet, if a copy of the rows is to go somewhere else. The file stays.
        words: What to make the logger with, instead of what the file says; such as `mode="online"`.

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
        return _replay_all(path, to, words)
    if not path.exists():
        raise LogFileError(f"There is no file {str(path)!r}.")
    run, start = head_of(path) or (None, 0)
    if run is not None and not run.keys() >= ABOUT:
        raise LogFileError(f"{str(path)!r} does not say what its rows are for.")
    if run is not None and to is None:
        made_with = dict(run["made_with"])
        if run["connected"] and made_with["resume"] == "never":
            made_with["resume"] = "allow"  # It is there by now.
        return _go_on(path, _made(run["logger"], _changed(made_with, words)))
    if to is None:
        raise LogValueError(
            f"{str(path)!r} does not say which tracker it is for. Say `to='wandb'`, or another of "
            f"{', '.join(map(repr, TRACKERS))}."
        )
    known = {} if run is None else _shared(run["made_with"])
    logger = to if isinstance(to, TrackerLogger) else _made(to, _changed(known, words))
    return _copy(path, start, logger, is_ours=run is not None)


def _replay_all(directory: Path, to: Any, words: dict[str, Any]) -> int:
    if isinstance(to, TrackerLogger):
        raise LogTypeError(
            "All files of a directory cannot go to one logger, as each is a run of its own. Give "
            f"the name of the tracker: `to={type(to).__name__!r}`."
        )
    sent, errors = 0, []
    for file in sorted(directory.glob("*.jsonl")):
        try:
            if head_of(file) is not None:
                sent += replay(file, to, **words)
        except InUseError:
            reports.warning("%s is in use, and left to who uses it.", file)
        except (SpoolaxError, OSError) as error:  # The others are still to be sent.
            if file.exists():  # Else somebody else has just sent it.
                errors.append(error)
    raise_all(errors, f"Some files of {str(directory)!r} could not be sent.")
    return sent


def _changed(made_with: dict[str, Any], words: dict[str, Any]) -> dict[str, Any]:
    """What to make a logger with, if some of it is to be different."""
    if "experiment" in words:  # Another word for it.
        made_with = {word: value for word, value in made_with.items() if word != "project"}
    return {**made_with, **words}


def _made(name: Any, words: dict[str, Any]) -> TrackerLogger:
    if isinstance(name, type) and issubclass(name, TrackerLogger):
        return name(**words)
    kinds = {**TrackerLogger.kinds, **TRACKERS}
    if name not in kinds:
        known = ", ".join(map(repr, TRACKERS))
        raise LogTypeError(
            f"{name!r} is no tracker that is known here: use one of {known}, or import the module "
            "that defines it."
        )
    return kinds[name](**words)


def _shared(words: dict[str, Any]) -> dict[str, Any]:
    """Those that mean the same to every tracker."""
    same = ("name", "project", "config", "tags", "group")
    return {word: value for word, value in words.items() if word in same}


def _go_on(path: Path, logger: TrackerLogger) -> int:
    """Send what is left in a file, as the logger that made it would have."""
    spill = Spill(path, lag=logger.lag)  # Before anything else: it may be in use.
    logger._existing, logger.unique = spill, spill.run["unique"]
    waiting = spill.waiting
    try:
        with logger:
            logger.put("", 0)
    finally:
        spill.close()  # If the logger could not even be opened.
        remove_if_empty(path.parent)
    return waiting - spill.waiting - logger._channel.refused


def _copy(path: Path, start: int, logger: TrackerLogger, is_ours: bool) -> int:
    """Send the rows of a file that stays as it is."""
    count, rows = 0, logger._rows

    def read(line: str) -> Row:
        if not is_ours:
            return rows.row(_record(line))
        row = from_line(line)
        return row._replace(time=rows.moment(row.time, row.step))

    with logger, open(path, "rb") as file:
        file.seek(start)
        lines = _lines(file, read)
        while batch := list(itertools.islice(lines, BATCH)):
            logger.put("".join(batch), len(batch))
            count += len(batch)
    return count - logger._channel.waiting - logger._channel.refused


def _lines(file: BinaryIO, read: Callable[[str], Row]) -> Iterator[str]:
    """The rows of a file, without lines that a crash cut off."""
    left_out = 0
    for line in file:
        try:
            yield as_line(read(line.decode())) + "\n"
        except (ValueError, KeyError, TypeError, AttributeError):
            left_out += 1
    if left_out:
        reports.warning("%d lines of %s are no entries, and were left out.", left_out, file.name)


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
