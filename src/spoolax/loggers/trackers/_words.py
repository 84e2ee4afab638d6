"""The words that loggers of trackers are made with: whether they make sense, and what they mean."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import LogTypeError, LogValueError
from ._rows import printable

RESUME = ("never", "allow", "must")
HERE = {  # What trackers call it, and what it is called here.
    "id": "run_id",
    "dir": "directory",
    "log_dir": "directory",
    "logdir": "directory",
    "save_dir": "directory",
    "run_name": "name",
    "experiment_name": "experiment",
    "params": "config",
    "hparams": "config",
    "uri": "tracking_uri",
}


def check_strings(**words: Any) -> None:
    """Raise an error if one of them is neither a string nor None."""
    for word, value in words.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise LogTypeError(f"`{word}` is a string, not {value!r}.")


def check_options(options: Iterable[str], logger: type, tracker: Iterable[str], where: str) -> None:
    """Raise an error if there are options that neither a logger nor its tracker knows."""
    theirs = set(tracker)
    words = [*inspect.signature(logger).parameters, *sorted(theirs)]
    for option in options:
        ours = [HERE[option]] if HERE.get(option) in words else []
        if option in theirs and not ours:
            continue
        close = ours or difflib.get_close_matches(option, words, 1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        other = "" if option in theirs else f", and {where} has none, either"
        raise LogTypeError(f"{logger.__name__} has no option `{option}`{other}.{hint}")


def seconds(patience: Any) -> float:
    """A time to wait."""
    is_number = isinstance(patience, (int, float)) and not isinstance(patience, bool)
    if not (is_number and patience >= 0):
        raise LogValueError(f"`patience` is a number of seconds, not {patience!r}.")
    return float(patience)


def tags_by_name(tags: Any) -> dict[str, str]:
    """Tags by name; those that are only words have no value."""
    if isinstance(tags, str):
        tags = (tags,)
    if not isinstance(tags, Iterable):
        raise LogTypeError(f"`tags` are words, or a dictionary, not {tags!r}.")
    named = tags if isinstance(tags, Mapping) else dict.fromkeys(tags, "")
    return {printable(str(name)): printable(str(value)) for name, value in named.items()}


def how_to_resume(resume: Any) -> str:
    """One of `RESUME`."""
    if resume is None or isinstance(resume, bool):
        return "allow" if resume else "never"
    if resume not in RESUME:
        known = ", ".join(map(repr, RESUME))
        raise LogValueError(f"`resume={resume!r}` is not known: use True, False, {known}.")
    return str(resume)


def kept(words: Mapping[str, Any]) -> dict[str, Any]:
    """Those that mean something, and can be written down."""
    return {word: value for word, value in words.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    if value is None or value == {}:
        return False
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
