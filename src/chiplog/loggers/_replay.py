"""Send what could not be sent before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .._host import raise_all
from ..errors import ChiplogError, LogFileError, LogTypeError, LogValueError
from ._mlflow import MlflowLogger
from ._paths import StrPath
from ._rows import as_line, from_line
from ._spill import Spill, head_of
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


def replay(path: StrPath, to: str | TrackerLogger | None = None, **words: Any) -> int:
    """Send the rows of a file, or of all files in a directory, to a tracker; return how many.

    A file that a logger left behind knows the tracker and the run that it is for, and is removed
    when everything in it was sent. Other files, of a `JsonlLogger`, can be sent as well, and stay.

    Args:
        path: The file, or a directory of files.
        to: "wandb", "tensorboard", "mlflow", "trackio", or a logger that is not open yet, if a copy
            of the rows is to go somewhere else. The file stays.
        words: What to make the logger with, instead of what the file says; such as `mode="online"`.

    Examples:
        >>> import tempfile
        >>> from chiplog.loggers import JsonlLogger, TrackerLogger
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
    if run is not None and to is None:
        made_with = dict(run["made_with"])
        if run["connected"] and made_with["resume"] == "never":
            made_with["resume"] = "allow"  # It is there by now.
        return _go_on(path, _made(run["logger"], {**made_with, **words}))
    if to is None:
        raise LogValueError(
            f"{str(path)!r} does not say which tracker it is for. Say `to='wandb'`, or another of "
            f"{', '.join(map(repr, TRACKERS))}."
        )
    known = {} if run is None else _shared(run["made_with"])
    logger = to if isinstance(to, TrackerLogger) else _made(to, {**known, **words})
    return _copy(path, start, logger)


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
        except ChiplogError as error:  # The others are still to be sent.
            errors.append(error)
    raise_all(errors, f"Some files of {str(directory)!r} could not be sent.")
    return sent


def _made(name: Any, words: dict[str, Any]) -> TrackerLogger:
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
    spill = Spill(path, {}, logger.lag)  # Before anything else: it may be in use.
    logger._existing, logger.unique = spill, spill.run["unique"]
    waiting = spill.waiting
    try:
        with logger:
            logger.put("", 0)
    finally:
        spill.close()  # If the logger could not even be opened.
        remove_if_empty(path.parent)
    return waiting - spill.waiting - logger._channel.refused


def _copy(path: Path, start: int, logger: TrackerLogger) -> int:
    """Send the rows of a file that stays as it is."""
    count = 0
    with logger, open(path, "rb") as file:
        file.seek(start)
        while batch := list(itertools.islice(_lines(file), BATCH)):
            logger.put("".join(batch), len(batch))
            count += len(batch)
    return count - logger._channel.waiting - logger._channel.refused


def _lines(file: BinaryIO) -> Iterator[str]:
    """The rows of a file, without lines that a crash cut off."""
    for line in file:
        try:
            yield as_line(from_line(line.decode())) + "\n"
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
