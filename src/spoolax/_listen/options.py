"""What a listener asks for. `tap`, `spool`, `watch` and loggers hand it on as a whole.

To add an option that `tap` and `spool` both have, add it to the two classes here and to the two
signatures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypedDict

from .._log.entry import Entry
from .._logdict.logdict import matches
from .._logdict.reductions import How, reduction
from ..errors import LogTypeError, LogValueError


class OptionsDict(TypedDict, total=False):
    """The options as keyword arguments, for functions that hand them on."""

    argnames: str | Iterable[str] | None
    tags: str | Iterable[str] | None
    keep_logs: bool
    interval: int | None
    reduce: How | None
    prefix: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options that all listeners have, checked."""

    argnames: Any = None  # Once checked, this and the tags are tuples of strings, or None.
    tags: Any = None
    keep_logs: bool = False
    interval: int | None = None
    reduce: How | None = None
    prefix: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "argnames", names(self.argnames, "argnames"))
        object.__setattr__(self, "tags", names(self.tags, "tags"))
        if not isinstance(self.prefix, str):
            raise LogTypeError(f"`prefix` must be a string, not {self.prefix!r}.")
        check_count("interval", self.interval)
        if self.reduce is not None:
            reduction(self.reduce)

    @property
    def windowed(self) -> bool:
        """Whether entries are thinned out or reduced on their way."""
        return self.interval is not None or self.reduce is not None

    def selects(self, key: str, entry: Entry) -> bool:
        """Say whether a key of an entry was asked for."""
        if entry.meta.taken:
            return False
        if self.argnames is None and self.tags is None:
            return not entry.meta.explicit
        by_name = self.argnames is None or any(matches(key, name) for name in self.argnames)
        by_tag = self.tags is None or not set(self.tags).isdisjoint(entry.meta.tags)
        return by_name and by_tag


def check_count(option: str, value: Any) -> None:
    """Refuse anything but None and positive integers."""
    if value is not None and (type(value) is not int or value < 1):
        raise LogValueError(f"`{option}` must be a whole number above 0, not {value!r}.")


def names(given: str | Iterable[str] | None, option: str) -> tuple[str, ...] | None:
    """Turn an option that takes one string or several into a tuple."""
    if given is None:
        return None
    try:
        given = (given,) if isinstance(given, str) else tuple(given)
    except TypeError as error:
        raise LogTypeError(
            f"`{option}` takes a string or several, not {given!r}. The arguments of the function "
            "go into a second pair of parentheses: `spoolax.spool(f)(x)`."
        ) from error
    for name in given:
        if not isinstance(name, str):
            raise LogTypeError(f"`{option}` takes strings, but one of them is {name!r}.")
    return given
