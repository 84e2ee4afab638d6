"""Calls of `log` that nobody hears, though somebody expects to.

Mostly it is normal that nobody listens. But between `with logger:` and its end, in a Python loop,
say, somebody who writes `log` means the logger; and a block that hears nothing at all may be there
for a program that was compiled ahead of time, outside of it.
"""

from __future__ import annotations

from types import CodeType, FrameType

from .._jax import tracing
from .._warn import is_users, warn
from ..errors import UnheardLogWarning

Block = tuple[int, CodeType]

_loggers: dict[Block, list[str]] = {}  # The loggers that are open, by the block they are open in.
_compiled = ""  # A `log` call that was left out of a program which was compiled ahead of time.


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
    global _compiled
    if not tracing.trace_is_clean():
        if is_users(frame) and tracing.is_ahead_of_time(frame):
            _compiled = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        return
    names = _loggers.get((id(frame), frame.f_code)) if _loggers else None
    if names:
        warn(
            f"Nobody listens to this `spoolax.log`, also not the {names[0]} that is open here: it "
            "gets what is logged in a block that it listens to, `with logger.listening():`, or "
            "inside a function, `logger.tap(f)`. Or call `logger.log(values, step)`.",
            UnheardLogWarning,
        )


def nothing_heard() -> None:
    """A block for all that is logged has ended, and nothing was."""
    global _compiled
    call, _compiled = _compiled, ""  # It is said once.
    if call:
        warn(
            f"Nothing was heard in this block. The `log` call at {call} was compiled ahead of "
            "time, `f.lower(x).compile()`, when nobody listened, so nothing is left of it. Compile "
            "it in a block with the same options, or call the jitted function `f`.",
            UnheardLogWarning,
        )
