"""What devices do that call the host each by itself, with the pieces that they have of arrays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..._jax.spread_call import Places
from ..._listen.in_pieces import InPieces
from ..receive import Asked, Handover, Receiver
from ..runs import Run


def gathering(receiver: Receiver, run: Run) -> InPieces:
    """The calls of a run."""
    return run.gatherings.setdefault(receiver, InPieces())  # type: ignore[no-any-return]


def called(
    receiver: Receiver, asked: Asked, device: int, places: Places, orders: Any, *given: Any
) -> Any:
    """A device does what `receiver` does for all, if they are not called each by itself."""
    if orders[0] < 0:
        return orders
    run, loop = receiver.run(orders), asked.loop
    pause, numbers = asked.read(iter(given))

    def answer() -> Any:
        made = receiver.answer(run, loop, False, orders, pause, run.arrived(loop))
        run.goes_on(loop)
        return made

    def queue(whole: Sequence[Any]) -> None:
        parts = asked.parts(numbers, iter(whole[1 + asked.numbers :]))
        receiver.put(parts, run, time.time())
        run.goes_on(loop)

    calls = gathering(receiver, run)
    return calls.call(device, places, (orders, *given), answer, queue, asked.holds_up)


def over(
    receiver: Receiver, handover: Handover, device: int, places: Places, numbers: Any, *given: Any
) -> Any:
    """Somebody else's program ends on a device."""
    run = receiver.run(abs(numbers))  # It may have been told to stop.

    def queue(whole: Sequence[Any]) -> None:
        receiver.ended(handover, run, numbers, whole[1:])

    return gathering(receiver, run).call(device, places, (numbers, *given), lambda: numbers, queue)
