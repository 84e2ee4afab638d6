"""`primitives`: what there is to watch in a program, as something to print and to look through."""

from __future__ import annotations

import html
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

from .._listen.callables import name_of
from .._listen.options import names
from .._listen.programs import trace_call
from .._walk.places import Where
from ..errors import LogValueError
from .outline import Item, address_matches, outline

MOST_LINES = 40  # With more, the primitives of a loop are drawn as one line.
MOST_KINDS = 5  # That are named in such a line.


def primitives(
    f: Callable[..., Any],
    *args: Any,
    where: str | Iterable[str] = "**",
    depth: int | None = None,
    loops_only: bool | None = None,
    **kwargs: Any,
) -> Outline:
    """List the loops and primitives of a function, with their addresses and source lines.

    Nothing runs. Of a large program, primitives that are no loops are counted only, unless you ask
    for them with `loops_only=False` or a `where` that selects few. If your function has keywords
    that are called like those of this one, bind them first: `functools.partial(f, where=...)`.

    Args:
        f: Any function of JAX code.
        *args: What it would be called with.
        where: List only what is at these addresses, which are those of `watch`.
        depth: How many levels of nested loops to list.
        loops_only: List loops only.
        **kwargs: What it would be called with.

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     return jax.lax.fori_loop(0, 3, lambda i, x: x * 2.0, x)
        >>> spoolax.primitives(f, 1.0)
        f
        └─ scan[0]    3 iterations, carry (int32[], float32[])  ...
           ├─ add[0]  int32[]                                   ...
           └─ mul[0]  float32[]                                 ...
    """
    whole = Outline(name_of(f), outline(trace_call(f, args, kwargs), Where()))
    return whole.select(where=where, depth=depth, loops_only=loops_only)


class Outline(Sequence[Item]):
    """The loops and primitives of a program: what `spoolax.primitives` returns.

    It is a sequence of entries in program order; each has an `address`, the `primitive` and the
    `line`, and `is_loop`; a loop also has `length`, `carry` and `outputs`. Print it to see it as a
    tree.

    Examples:
        >>> import spoolax, jax
        >>> def f(x):
        ...     return jax.lax.fori_loop(0, 3, lambda i, x: x * 2.0, x)
        >>> outline = spoolax.primitives(f, 1.0)
        >>> outline.addresses
        ['scan[0]', 'scan[0]/add[0]', 'scan[0]/mul[0]']
        >>> [loop.length for loop in outline.loops]
        [3]
        >>> outline["scan[0]"].carry
        ['int32[]', 'float32[]']
        >>> y = spoolax.watch(f, where=outline.loops[0].address)(1.0); spoolax.flush()
        scan[0]/carry[0]=1  scan[0]/carry[1]=2
        scan[0]/carry[0]=2  scan[0]/carry[1]=4
        scan[0]/carry[0]=3  scan[0]/carry[1]=8
    """

    def __init__(
        self,
        name: str,
        items: Sequence[Item],
        parts: Sequence[Item] | None = None,
        loops_only: bool | None = None,
    ) -> None:
        self.name, self._all = name, items
        self._items = items if parts is None else parts
        self._loops_only = loops_only

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, at: int | str) -> Item: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Item]: ...
    def __getitem__(self, at: Any) -> Any:
        """An entry by number, or by address."""
        if not isinstance(at, str):
            return self._items[at]
        found = next((item for item in self if item.address == at), None)
        if found is None:
            raise KeyError(
                f"There is nothing at {at!r}. The loops are at {[x.address for x in self.loops]}."
            )
        return found

    @property
    def loops(self) -> list[Item]:
        """The loops."""
        return [item for item in self if item.is_loop]

    @property
    def addresses(self) -> list[str]:
        """The addresses of all entries, for the `where` of `watch` and `progress`."""
        return [item.address for item in self]

    def select(
        self,
        *,
        where: str | Iterable[str] = "**",
        depth: int | None = None,
        loops_only: bool | None = None,
    ) -> Outline:
        """Some of the entries, chosen as in `spoolax.primitives`."""
        patterns = names(where, "where") or ()
        if depth is not None and (not isinstance(depth, int) or depth < 1):
            raise LogValueError(f"`depth` must be a positive integer, not {depth!r}.")
        chosen = [
            item
            for item in self
            if any(address_matches(item.address, pattern) for pattern in patterns)
            and (depth is None or item.address.count("/") < depth)
            and (item.is_loop or not loops_only)
        ]
        return Outline(self.name, self._all, chosen, loops_only)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def _lines(self) -> list[str]:
        """Draw the entries as a tree, with the loops around them."""
        chosen = {address for item in self for address in _with_loops_around(item.address)}
        shown = [item for item in self._all if item.address in chosen]
        unlisted = [i.address for i in self._all if i.is_loop and i.address not in chosen]
        full = len(shown) <= MOST_LINES or self._loops_only is False
        inside: dict[str, list[Item]] = {}
        for item in shown:
            inside.setdefault(item.address.rpartition("/")[0], []).append(item)
        rows = [(self.name, "", "")]

        def add(address: str, indent: str) -> None:
            items = inside.get(address, [])
            loops = [item for item in items if item.is_loop]
            counted = [] if full else [item for item in items if not item.is_loop]
            listed = items if full else loops
            for number, item in enumerate(listed, 1):
                last = number == len(listed) and not counted
                label = item.address.rpartition("/")[2]
                hidden = sum(a.startswith(f"{item.address}/") for a in unlisted)
                more = f", {hidden} more loop{'s' * (hidden > 1)} inside" if hidden else ""
                what = item.description() + more
                rows.append((f"{indent}{'└─' if last else '├─'} {label}", what, _short(item.line)))
                if item.is_loop:
                    add(item.address, indent + ("   " if last else "│  "))
            if counted:
                rows.append((f"{indent}└─ {len(counted)} others", _kinds(counted), ""))

        add("", "")
        widths = [max(len(row[i]) for row in rows if row[2] or not row[1]) for i in range(2)]
        lines = [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows]
        if not full:
            lines.append("(`loops_only=False` lists all others, and `where` those of some loops.)")
        return lines


def _with_loops_around(address: str) -> Iterator[str]:
    parts = address.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts) + 1))


def _kinds(items: Sequence[Item]) -> str:
    """Which primitives there are, the most frequent ones first."""
    counts = Counter(item.primitive for item in items)
    named = [f"{name} x{n}" if n > 1 else name for name, n in counts.most_common(MOST_KINDS)]
    rest = len(counts) - len(named)
    return ", ".join(named) + (f" and {rest} more kinds" if rest > 0 else "")


def _short(line: str) -> str:
    """A source line without the directories that packages are installed in, or where we are."""
    line = re.sub(r"^.*/(site|dist)-packages/", "", line)
    return line.removeprefix(f"{os.getcwd()}/")
