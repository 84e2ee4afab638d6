"""What to tell the user at the end about rows that were not sent, and how to send them."""

from __future__ import annotations

import sys
import warnings

from ....errors import UnsentWarning
from .channel import Channel
from .unsent_rows import rows_text


def warn_about(channels: list[Channel]) -> None:
    """Warn of what closed channels could not do."""
    if unsent := [channel for channel in channels if channel.waiting]:
        _warn_unsent(unsent)
    for channel in channels:
        began = channel.wanted or channel.connected.is_set()
        if began and not (channel.was_finished or channel.waiting or channel.refusal):
            what = "close" if channel.connected.is_set() else "open"
            _warn(f"{channel.title} could not {what} its run{channel.reason}.")
        if channel.refused.file is not None:
            rows, path = rows_text(channel.refused.count), channel.refused.file.path
            _warn(f"{channel.title}: the tracker refused {rows}. They are in {path}.")


def _warn_unsent(channels: list[Channel]) -> None:
    first = channels[0]
    assert first.unsent.file is not None
    rows = rows_text(sum(channel.waiting for channel in channels))
    runs = "" if len(channels) == 1 else f" of {len(channels)} runs"
    path = first.unsent.file.path
    place = str(path if len(channels) == 1 else path.parent)
    refused = any(channel.refusal for channel in channels)
    change = " (with other arguments, as these were refused)" if refused else ""
    _warn(
        f"{first.title} could not send {rows}{runs}{first.reason}. Nothing is lost: send them "
        f"later with `spoolax.loggers.replay({place!r})`{change}."
    )


def _warn(message: str) -> None:
    """Warn as if it came from the user's own code, which is what they can change."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("spoolax."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UnsentWarning, stacklevel=level)
