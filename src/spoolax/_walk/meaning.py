"""What becomes of the entries of a program: what `spool`, `tap` and `watch` tell the walker."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from .._jax import tracing
from .._jax.anatomy import Scan
from .._jax.primitives import Jaxpr, JaxprEqn
from .._log.entry import Nodes, entries
from ..errors import UnsupportedError
from .counts import logs
from .labels import relabelled
from .places import Where

State: TypeAlias = Any
# The outputs of an equation, the state after it, and the entries that come out of it.
Outcome: TypeAlias = tuple[list[Any], State, Nodes]
# Iterations of a chunked loop that may be unrolled into one.
MOST_UNROLLED = 8


class Body(NamedTuple):
    """One iteration of a loop: what ran, on what, and what came out.

    `carried` of the results are carried on: the first of them. They come in as as many arguments,
    from number `first_carried` on.
    """

    jaxpr: Jaxpr
    args: Sequence[Any]
    outs: Sequence[Any]
    carried: int
    first_carried: int


class Meaning:
    """What becomes of an entry. Methods may be called more than once for the same equation."""

    # What is not to be logged, being repetitions: `repetitions.once` says which those are.
    repeated: frozenset[Any] = frozenset()
    # What is built is being linearized. So it has to stay possible to tell what is known from what
    # depends on tangents.
    linearizes = False
    # Entries are left where they are, and the state goes through unchanged. So derivative rules may
    # log, too.
    in_place = False

    def hearing(self) -> contextlib.AbstractContextManager[Any]:
        """A context to run derivative rules in. By default, they log if somebody listens there."""
        return contextlib.nullcontext()

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        """Take entries in: into the state, or passed on as outputs, or both."""
        raise NotImplementedError

    def enters(self, eqn: JaxprEqn) -> bool:
        """Say whether to look into an equation. The others run unchanged."""
        return bool(logs(eqn))

    def wants(self, eqn: JaxprEqn) -> bool:
        """Say whether to evaluate an equation of a program whose results are known."""
        return bool(logs(eqn))

    def run(
        self, eqn: JaxprEqn, invals: Sequence[Any], state: State, where: Where
    ) -> tuple[list[Any], State]:
        """Run an equation that is not looked into."""
        del where
        return tracing.bind(eqn, invals), state

    # Whether it is only to be found out what there is to log. Then what is not looked into is not
    # run, since tracing it takes time, and others that need its results get something like them.
    rehearses = False

    def passed_over(self, eqn: JaxprEqn, where: Where) -> None:
        """In a rehearsal, an equation was not run."""

    def stepped(self, body: Body, state: State, where: Where) -> State:
        """The body of the loop `where` ran once."""
        del body, where
        return state

    def goes_on(self, state: State) -> Any:
        """Say whether the program is to go on. If it is not, it leaves chunked and while loops."""
        del state
        return True

    def deferred(self) -> Meaning | None:
        """The meaning to use in branches, if their entries may be logged after them.

        That keeps the state out of the branches, which matters if it is large.
        """
        return None

    def iterated(self, state: State, where: Where) -> State:
        """An iteration of the loop `where` has ended."""
        del where
        return state

    def left(self, state: State, where: Where) -> State:
        """A loop has ended, and we are back at `where`."""
        del where
        return state

    def entered(self, state: State, where: Where) -> State:
        """The loop `where` is about to begin."""
        del where
        return state

    # A meaning may want loops to run in chunks of iterations, and act in between. Then entries do
    # not come out of loops: they are committed, at the end of an iteration at the latest.

    def chunked(self, where: Where) -> bool:
        """Say whether the loop `where` should run in chunks."""
        del where
        return False

    def iteration(self, state: State, where: Where) -> Any:
        """How many iterations the loop `where`, which runs in chunks, has made."""
        raise NotImplementedError

    def pauses(self, state: State, where: Where, first: Any, program: Jaxpr) -> Any:
        """Say whether a chunk of the loop `where`, of a program, is to end.

        It began with iteration `first`. A loop that is unrolled may overstep that by
        `MOST_UNROLLED`.
        """
        raise NotImplementedError

    def began(self, state: State, where: Where, first: Any) -> Any:
        """The iteration with which a chunk began that is over: `first` on our own device.

        It may be another one, for the chunk to have as many iterations as on any device.
        """
        del state, where
        return first

    def block_size(self, scan: Scan, where: Where) -> int | None:
        """How many iterations of the loop `where` are to run without a pause, if not in chunks.

        Then they are compiled as a loop of known length.
        """
        del scan, where
        return None

    def block_ended(self, state: State, where: Where, size: int, unfinished: Any) -> State:
        """So many iterations are over, and the loop may go on with as many."""
        raise NotImplementedError

    def chunk_ended(self, state: State, where: Where, first: Any, paused: Any) -> State:
        """A chunk that began with iteration `first` is over: the loop has `paused`, or ended."""
        raise NotImplementedError

    # It may also want to look at single iterations, of which it is known only after they have run
    # which ones those are. Then the loop goes back to where the chunk began, and comes up to there.

    def noted(self, state: State, where: Where) -> Any:
        """Say whether an iteration of the loop `where` is to be looked at, in this chunk.

        None: there never is one.
        """
        del state, where

    def rewound(self, before: State, state: State, where: Where) -> State:
        """Forget what was noted in the loop `where`, and all that it did since `before`."""
        raise NotImplementedError

    def looked_at(self, body: Body, state: State, where: Where) -> State:
        """An iteration that was noted has just run, and was all of a chunk."""
        raise NotImplementedError

    def commit(self, nodes: Nodes, state: State, where: Where) -> State:
        """Take in entries that `log` passed on."""
        raise NotImplementedError

    def commits_before(self, eqn: JaxprEqn) -> bool:
        """Say whether the entries before an equation must be committed before it runs."""
        del eqn
        return False

    def in_shards(self, eqn: JaxprEqn, where: Where) -> Shards | None:
        """The meaning to use inside a `shard_map`, if entries are not to come out of it."""
        del eqn, where
        return None


class Shards(Meaning):
    """A meaning inside a `shard_map`, with a state of its own on each device."""

    def given(self, state: State, where: Where) -> tuple[State, Any]:
        """The state around, and what all devices are given of it."""
        raise NotImplementedError

    def begin(self, given: Any) -> State:
        """The state of a device to begin with."""
        raise NotImplementedError

    def end(self, state: State) -> tuple[Any, Any]:
        """What a device returns: what is the same on all, and what is its own.

        The arrays of the latter have a leading axis, along which those of all devices are joined.
        """
        raise NotImplementedError

    def returned(self, state: State, common: Any, own: Any) -> State:
        """The state around, after all devices have returned."""
        raise NotImplementedError


class Silent(Meaning):
    """Drops every entry."""

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        del nodes, where
        return (), state


class PassOn(Meaning):
    """Passes every entry on as it is."""

    def __init__(self, repeated: frozenset[Any] = frozenset()) -> None:
        self.repeated = repeated

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        del where
        return nodes, state

    def deferred(self) -> Meaning:
        return self


class Collect(Meaning):
    """Passes every entry on as an output, which is possible outside while loops only."""

    def __init__(self, repeated: frozenset[Any]) -> None:
        self.repeated = repeated

    def log(self, nodes: Nodes, state: State, where: Where) -> tuple[Nodes, State]:
        if where.unbounded:
            keys = sorted({key for entry in entries(nodes) for key in entry.data})
            raise UnsupportedError(
                f"Cannot log {keys} from a `jax.lax.while_loop` inside `jax.shard_map`: the "
                "number of entries is unknown, and may differ from device to device. Use "
                "`spoolax.tap` without `interval` and `reduce`, around a `shard_map` that is in no "
                "loop, branch or cond_fun (over several processes, neither may the while loop be); "
                "or `jax.lax.scan` or `fori_loop` with a fixed length; "
                "or carry the value out of the `shard_map` and log it outside."
            )
        return relabelled(nodes, where), state
