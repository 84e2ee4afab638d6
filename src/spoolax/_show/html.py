"""Tables in HTML, for notebooks. They take the colours of what is around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "text-align:{side};padding:2px 10px 2px 0;white-space:nowrap;border:0"


class Markup(str):
    """Text that is HTML already."""


def table(
    rows: Iterable[Sequence[str]], header: Sequence[str] = (), numbers: Sequence[int] = ()
) -> str:
    """A table. Columns with these numbers are aligned to the right."""

    def line(cells: Sequence[str], tag: str, style: str = "") -> str:
        made = (
            f'<{tag} style="{_CELL.format(side="right" if i in numbers else "left")}{style}">'
            f"{cell if isinstance(cell, Markup) else escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f'<tr style="background:none">{"".join(made)}</tr>'

    head = f"<thead>{line(header, 'th', ';opacity:0.6;font-weight:normal')}</thead>"
    body = "".join(line(cells, "td") for cells in rows)
    return (
        '<table style="border-collapse:collapse;font-variant-numeric:tabular-nums;border:0">'
        f"{head if header else ''}<tbody>{body}</tbody></table>"
    )


def titled(title: str, about: str, content: str) -> str:
    """Something with a title, and a line about it."""
    return (
        f'<div style="margin:4px 0"><b>{escape(title)}</b> '
        f'<span style="opacity:0.7">{escape(about)}</span>{content}</div>'
    )


def bar(fraction: float) -> str:
    """A bar that is filled up to a fraction."""
    return (
        '<div style="width:320px;max-width:100%;height:6px;border-radius:3px;margin:4px 0;'
        'background:rgba(128,128,128,0.25)"><div style="height:100%;border-radius:3px;'
        f'width:{100 * min(1.0, max(0.0, fraction)):.1f}%;background:#0072B2"></div></div>'
    )
