"""Programs that stream what they log: compiled by themselves, or inside what surrounds them.

A tap inside another trace cannot be compiled on its own, so it only claims its entries. They go
through whatever JAX does to the program around them; when JAX compiles that, the tap has it
compiled as a stream.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax

from .._jax import arrays
from .._jax.primitives import Jaxpr, JaxprEqn
from .._jax.tracing import trace
from .._listen.programs import Program
from .._listen.selection import left_over
from .._listen.silence import warn_of_silence
from .._log.entry import Entry, Nodes, divided, map_entries, with_steps
from .._log.primitive import Around, emit, listening
from .._walk.counts import running_loops
from .._walk.interpret import interpret
from .._walk.meaning import Shards, State
from .._walk.places import Where
from .._walk.repetitions import once
from .._walk.survey import survey
from .host import host
from .pace import Pace
from .runs import Run
from .stream import Tap, stream


class Streamed(Program):
    """One way of calling a tapped function: the same structure and static arguments."""

    extra = 1  # The number of the run, and the pace to begin with.
    steps: tuple[str, ...] = ()  # Given to `call`, and added to every entry, inside a trace.
    warns = True  # If the options select nothing.

    def __init__(self, tap: Tap, *args: Any) -> None:
        super().__init__(*args)
        self._tap = tap
        self._paces: dict[Any, Pace] = {}
        if self.traced:
            self.extra = len(self.steps)

    def interpret(self, closed: Jaxpr, args: Sequence[Any]) -> tuple[list[Any], Any]:
        program = closed
        found, repeated = once(survey(closed, unbounded=not self._tap.options.windowed))
        if self.warns:
            nodes = (nodes for nodes, _ in found)
            warn_of_silence(self.function, closed, nodes, self._tap.options)
        if not self.traced:
            *args, begin = args
            tap: Tap | None = self._tap
            if isinstance(listening.value, Around):  # Blocks get what we leave.
                claiming = _Claiming(self._tap, (), repeated)
                closed = trace(
                    lambda *args: interpret(program, args, (), claiming, Where())[0],
                    [jax.typeof(arg) for arg in args],
                )
                found, repeated = once(survey(closed, unbounded=True))
                tap = None
            return stream(closed, found, repeated, args, tap, begin, self._pace(args))
        # Compiled by itself inside what surrounds it, so that it is streamed as a whole.
        assert _current.value is not None
        claiming = _Claiming(_current.value, self.steps, repeated)
        count = len(args) - self.extra

        def claimed(*args: Any) -> list[Any]:
            outs, _, _ = interpret(closed, args[:count], args[count:], claiming, Where())
            return outs

        return jax.jit(claimed)(*args), ()

    def call(self, leaves: Sequence[Any], tap: Tap, *steps: Any) -> Any:
        """Run the program and return what the user gets."""
        if self.traced:
            with _current(tap):
                return self.applied(self.run([*leaves, *steps])[0])
        assert tap.sink is not None
        pace = self._pace(leaves)
        run = host.begin(tap.sink)
        begin = pace.begin(run.number, tap.sink.latency)
        given = [*leaves, arrays.on_devices(begin, leaves)]
        if pace.is_short:
            return self.applied(self._started(run, given))
        try:
            with run.interruptible:
                out, tail = self.run(given)
                run.token = tail.read_here()
                run.interruptible.wait_for(run.token)
        except KeyboardInterrupt as interrupt:
            # If it is still running, it learns that when it calls.
            run.stop = run.stop or interrupt
            host.runs.abandoned(run)
            raise
        except BaseException as error:
            self._failed(run, error)
            raise
        run.ended = time.perf_counter()
        host.runs.ended(run)
        run.raise_if_stopped()
        tail.handover.receiver.returned(tail, run)
        return self.applied(out)

    def _started(self, run: Run, given: Sequence[Any]) -> Any:
        """Start a program that does not take long, and do not wait for it."""
        run.waited = False
        try:
            out, tail = self.run(given)
        except BaseException as error:
            self._failed(run, error)
            raise
        run.token = tail.read_here()
        tail.handover.receiver.returned(tail, run)
        return out

    @staticmethod
    def _failed(run: Run, error: BaseException) -> None:
        host.runs.ended(run)
        # If JAX has waited for the program itself, what a host call raised is a ValueError.
        if isinstance(error, (jax.errors.JaxRuntimeError, ValueError)):
            run.stopped = run.stopped or (run.stop is not None and not run.waited)
            run.raise_if_stopped()  # What it ran into after that is of no interest.

    def _pace(self, leaves: Sequence[Any]) -> Pace:
        """The pace of the program for arguments of these shapes."""
        shapes = tuple([getattr(leaf, "shape", ()) for leaf in leaves])
        pace = self._paces.get(shapes)
        return self._paces.setdefault(shapes, Pace()) if pace is None else pace


# The tap whose function is being traced inside another trace. It is part of JAX's cache keys.
_current = jax.make_user_context(default_value=None)


class _Claiming(Shards):
    """Leaves entries where they are, claimed by a tap.

    The state is the values of the steps that they get besides their own.
    """

    in_place = True

    def __init__(self, tap: Tap, steps: Sequence[str], repeated: frozenset[Any]) -> None:
        self._tap, self._steps, self.repeated = tap, steps, repeated

    def hearing(self) -> contextlib.AbstractContextManager[Any]:
        # They run when somebody differentiates the program, who may not listen.
        rehearsed = listening.value is False
        return contextlib.nullcontext() if rehearsed else listening(True)

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        del where
        tap, options = self._tap, self._tap.options

        def claim(entry: Entry) -> Entry:
            taken = not options.keep_logs
            meta = dataclasses.replace(
                entry.meta, listeners=(*entry.meta.listeners, tap), taken=taken
            )
            more = dict(zip(self._steps, state, strict=True))
            return with_steps(entry, more).replace(meta=meta)

        made: Nodes = ()
        for some, is_mine in divided(nodes, options.selects):
            made += map_entries(claim, some) if is_mine else left_over(some, options)
        emit(made)
        return (), state

    def in_shards(self, eqn: JaxprEqn, where: Where) -> Shards | None:
        return self if running_loops(eqn) else None  # They stay where they are, to be live.

    def given(self, state: State, where: Where) -> tuple[State, Any]:
        return state, state

    def begin(self, given: Any) -> State:
        return given

    def end(self, state: State) -> tuple[Any, Any]:
        return (), ()

    def returned(self, state: State, common: Any, own: Any) -> State:
        return state
