"""Check the arguments that the loggers of trackers take, and bring them into one form."""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import LogTypeError, LogValueError
from ._rows.surrogates import escape_surrogates

RESUME = ("never", "allow", "must")
OUR_NAMES = {  # For what trackers call it.
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


def check_strings(**arguments: Any) -> None:
    """Raise an error if one of them is neither None nor a string, or is empty."""
    for name, value in arguments.items():
        if value is not None and (not isinstance(value, str) or not value):
            raise LogTypeError(f"`{name}` must be a string, not {value!r}.")


def check_options(options: Iterable[str], logger: type, tracker: Iterable[str], where: str) -> None:
    """Raise an error if there are options that neither a logger nor its tracker has."""
    theirs = set(tracker)
    known = [*inspect.signature(logger).parameters, *sorted(theirs)]
    for option in options:
        ours = [OUR_NAMES[option]] if OUR_NAMES.get(option) in known else []
        if option in theirs and not ours:
            continue
        close = ours or difflib.get_close_matches(option, known, 1)
        hint = f" Did you mean `{close[0]}`?" if close else ""
        other = "" if option in theirs else f", and neither has {where}"
        raise LogTypeError(f"{logger.__name__} has no option `{option}`{other}.{hint}")


def parameters_of(f: Callable[..., Any]) -> list[str]:
    """The names of the keyword arguments that a function takes."""
    parameters = inspect.signature(f).parameters.values()
    return [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]


def checked_patience(patience: Any) -> float:
    """A number of seconds."""
    is_number = isinstance(patience, (int, float)) and not isinstance(patience, bool)
    if not (is_number and patience >= 0):
        raise LogValueError(f"`patience` must be a number of seconds, not {patience!r}.")
    return float(patience)


def checked_tags(tags: Any) -> dict[str, str]:
    """Tags and their values, which are empty if they have none."""
    if isinstance(tags, str):
        tags = (tags,)
    if not isinstance(tags, Iterable):
        raise LogTypeError(f"`tags` must be strings, or a dictionary, not {tags!r}.")
    named = tags if isinstance(tags, Mapping) else dict.fromkeys(tags, "")
    return {
        escape_surrogates(str(tag)): escape_surrogates(str(value)) for tag, value in named.items()
    }


def checked_resume(resume: Any) -> str:
    """One of `RESUME`."""
    if resume is None or isinstance(resume, bool):
        return "allow" if resume else "never"
    if resume not in RESUME:
        known = ", ".join(map(repr, RESUME))
        raise LogValueError(f"`resume={resume!r}` is not known: use True, False, {known}.")
    return str(resume)


def json_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not empty, and that JSON can hold."""
    return {name: value for name, value in arguments.items() if _is_json(value)}


def _is_json(value: Any) -> bool:
    if value is None or value == {}:
        return False
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
