"""Calls of `log` that nobody hears, in the very block in which a logger is open.

Elsewhere it is normal that nobody listens. But between `with logger:` and its end, in a Python
loop, say, somebody who writes `log` means the logger.
"""

from __future__ import annotations

from types import CodeType, FrameType

from .._jax import tracing
from .._warn import is_users, warn
from ..errors import UnheardLogWarning

Block = tuple[int, CodeType]

_loggers: dict[Block, list[str]] = {}  # The loggers that are open, by the block they are open in.


def logger_opened(name: str, frame: FrameType | None) -> Block | None:
    """A logger was opened by the code in a frame, or on its behalf."""
    while frame is not None and not is_users(frame):
        frame = frame.f_back
    if frame is None:
        return None
    block = id(frame), frame.f_code
    _loggers.setdefault(block, []).append(name)
    return block


def logger_closed(name: str, block: Block | None) -> None:
    """It was closed again."""
    if block is not None:
        _loggers[block].remove(name)
        if not _loggers[block]:
            del _loggers[block]


def nobody_listens(frame: FrameType) -> None:
    """The code in a frame called `log`, and nobody listens."""
    if not _loggers:
        return
    names = _loggers.get((id(frame), frame.f_code))
    if names and tracing.trace_is_clean():
        warn(
            f"Nobody listens to this `spoolax.log`, also not the {names[0]} that is open here: it "
            "gets what is logged in a block that it listens to, `with logger.listening():`, or "
            "inside a function, `logger.tap(f)`. Or call `logger.log(values, step)`.",
            UnheardLogWarning,
        )
