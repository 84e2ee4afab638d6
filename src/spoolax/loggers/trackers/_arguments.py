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


def checked_string(argument: str, value: Any) -> str | None:
    """A string that is not empty, or None."""
    if value is not None and (not isinstance(value, str) or not value):
        raise LogTypeError(f"`{argument}` must be a string, not {value!r}.")
    return None if value is None else escape_surrogates(value)


def checked_project(project: Any, experiment: Any) -> str | None:
    """The project, which may be given under either name."""
    if project is not None and experiment is not None and project != experiment:
        raise LogValueError(
            f"`project={project!r}` and `experiment={experiment!r}` mean the same: give one."
        )
    return checked_string("project", project or experiment)


def checked_mode(mode: Any, modes: tuple[str, ...], title: str) -> str | None:
    """One of the modes that a tracker has, or None."""
    if mode is not None and mode not in modes:
        known = " or ".join(map(repr, modes))
        raise LogValueError(f"{title} has no `mode={mode!r}`: use {known}.")
    return None if mode is None else str(mode)


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


def checked_resume(resume: Any, run: Any) -> str:
    """One of `RESUME`; to resume anything, there must be something to find the `run` by."""
    if resume is None or isinstance(resume, bool):
        how = "allow" if resume else "never"
    elif resume in RESUME:
        how = str(resume)
    else:
        known = ", ".join(map(repr, RESUME))
        raise LogValueError(f"`resume={resume!r}` is not known: use True, False, {known}.")
    if how != "never" and not run:
        raise LogValueError(
            f"`resume={resume!r}` does not say which run to resume: give the `run_id`, or the "
            "`name`, that it had."
        )
    return how


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
