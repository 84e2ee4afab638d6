"""Run a program with a listener around it, and compare with what plain Python says."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import reject

import spoolax
from fuzz import observed
from fuzz.expected import histories, limited, windowed
from fuzz.grammar import kinds
from fuzz.observed import loops_of
from fuzz.with_jax import Jax
from fuzz.with_python import Listener, Python, TooLargeError
from spoolax.errors import NothingSelectedWarning

XS = (3.0, 4.0)  # A program is called with each of them, one after the other.
ENOUGH = 256  # What a key has room for inside of a trace.
ROUNDED = {"mean": 1e-6, "std": 1e-5}  # Reductions whose results are not whole numbers.

# Loops of these have other carries than those of the program, or are not looked into.
UNSEEN = {"vmap", "vmap_some", "shard_map", "replicated", "grad", "vjp", "jvp", "linearize"}


def check(program, listener="spool", options=None, donated=False):
    """Check a program's output, what a listener around it gets, and what those in it get."""
    options, heard = options or {}, []
    runs = [_with_python(program, x, options) for x in XS]
    plain = _plain(program, donated, mapped=listener == "vmap(spool)")

    def f(x):
        return Jax(heard)(program, x)

    call = LISTENERS[listener](jax.jit(f, donate_argnums=0) if donated else f, options)
    for number, (x, (python, want, entries)) in enumerate(zip(XS, runs, strict=True)):
        heard.clear()
        argument, other = jnp.float32(x), jnp.float32(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingSelectedWarning)
            try:
                output, got, order = call(number, argument)
            except TypeError:
                _reject_if_dead(program, x)
                raise
        spoolax.flush()
        assert float(output) == want, (x, output, want)
        if donated and listener in ("spool", "tap"):
            plain(other)
            assert argument.is_deleted() == other.is_deleted()
        if got is not None:
            _compare(got, entries, python, options)
        if order is not None and not options:
            assert order == [entry.key for entry in entries if not entry.lane]
        if listener != "vmap(spool)":  # There, the others get both calls at once.
            _compare(observed.streamed(heard, {}), _heard(python, listener), python, {})


def check_watch(program, options=None):
    """Check what a program returns that is watched, and the carries of its loops."""
    options, seen = options or {}, []
    interval, reduce = options.get("interval"), options.get("reduce")
    _plain(program)

    def f(x):
        return Jax()(program, x)

    watched = spoolax.watch(f, seen.append, carry=lambda xs: {"x": xs[-1]}, **options)
    for x in XS:
        python, want, _ = _with_python(program, x, {})
        seen.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NothingSelectedWarning)
            assert float(watched(jnp.float32(x))) == want
        spoolax.flush()
        if kinds(program) & UNSEEN:
            continue
        got = [(value, {}, loops_of(logs)) for logs in seen for value in logs.values()]
        if reduce is None:
            rows = windowed(python.watched, interval, reduce)
        else:  # Each loop has a key of its own, and it is open which ends first.
            each = histories(python.watched).values()
            rows = _sorted(row for history in each for row in windowed(history, interval, reduce))
            got = _sorted(got)
        assert len(got) == len(rows), (got, rows)
        for one, other in zip(got, rows, strict=True):
            _same(one, other, "carry", reduce)


def _heard(python, listener):
    """What listeners inside should get.

    A `spool` around them has the first test of a loop made before the loop, and it is open where
    what is logged there comes from.
    """
    if "spool" not in listener:
        return python.heard
    return [
        dataclasses.replace(one, loops=None) if ": w" in one.key else one for one in python.heard
    ]


def _with_python(program, x, options):
    selected = {name: options[name] for name in ("argnames", "tags") if name in options}
    listener = Listener(**selected)
    python = Python(listener)
    try:
        want = python(program, x)
    except TooLargeError:
        reject()
    if any(len(history) > ENOUGH for history in histories(listener.entries).values()):
        reject()
    return python, want, listener.entries


def _plain(program, donated=False, mapped=False):
    """The program without listeners, if JAX can run it. Forward mode of `custom_vjp` it cannot."""

    def f(x):
        return Jax()(program, x)

    plain = jax.jit(f, donate_argnums=0 if donated else ())
    try:
        if mapped:
            jax.jit(jax.vmap(f)).lower(jnp.zeros(len(XS), jnp.float32))
        else:
            plain.lower(jnp.float32(0))
    except (TypeError, ValueError, NotImplementedError):
        reject()
    return plain


def _reject_if_dead(program, x):
    """Reject a program that JAX compiles only because it leaves out what it cannot run.

    What logs is not left out.
    """
    with jax.disable_jit():
        try:
            Jax()(program, jnp.float32(x))
        except TypeError:
            reject()


def _spool(transform):
    """Spool a function, perhaps inside of a trace, where there must be room for its entries."""

    def make(f, options):
        room = {} if transform is None else {"capacity": ENOUGH}
        g = spoolax.spool(f, **{**room, **options})
        g = g if transform is None else transform(g)

        def call(number, x):
            if transform is jax.vmap:
                y, logs = jax.tree.map(lambda a: a[number], g(jnp.array(XS, jnp.float32)))
            else:
                y, logs = g(x)
            return y, observed.collected(logs, options), None

        return call

    return make


def _tap(transform):
    def make(f, options):
        seen = []
        g = transform(spoolax.tap(f, seen.append, **options))

        def call(number, x):
            del number
            seen.clear()
            y = g(x)
            spoolax.flush()
            return y, observed.streamed(seen, options), observed.laneless(seen)

        return call

    return make


def _listening(f, options):
    """A block around a jitted function. Entries that have no step are given one."""
    jitted, prefix = jax.jit(f), options.get("prefix", "")

    def call(number, x):
        del number
        seen = []
        with spoolax.listening(seen.append, **options):
            y = jitted(x)
        for logs in seen:
            if list(logs.steps) == ["step"] and not next(iter(logs)).startswith(f"{prefix}g"):
                logs.steps.clear()
        return y, observed.streamed(seen, options), observed.laneless(seen)

    return call


def _nobody(f, options):
    """Only what taps in the program hear is looked at. They are on their own then."""
    del options
    g = jax.jit(f)
    return lambda number, x: (g(x), None, None)


LISTENERS = {
    "spool": _spool(None),
    "jit(spool)": _spool(jax.jit),
    "vmap(spool)": _spool(jax.vmap),
    "tap": _tap(lambda f: f),
    "jit(tap)": _tap(jax.jit),
    "listening": _listening,
    "nobody": _nobody,
}


def _compare(got, entries, python, options):
    interval, reduce = options.get("interval"), options.get("reduce")
    wanted = histories(entries)
    looped = {entry.key for entry in entries if entry.loop}
    unclear = {entry.key for entry in entries if interval and not python.counted(entry)}
    for key, lane in {*got, *wanted}:
        if key in unclear:
            continue
        mine = got.get((key, lane), [])
        # A key that is logged in no loop is reduced to one entry. If there are loops that do not
        # run, one cannot see here whether they log it.
        whole = reduce and key not in looped and len(mine) == 1
        rows = windowed(wanted[key, lane], None if whole else interval, reduce)
        if interval and reduce:  # Windows of several loops may end in any order.
            rows, mine = _sorted(rows), _sorted(mine)
        if "capacity" in options and not reduce:
            rows = _kept(mine, rows, options, bool(lane), key in looped)
        assert len(mine) == len(rows), (key, lane, mine, rows)
        for one, other in zip(mine, rows, strict=True):
            _same(one, other, key, reduce)


def _sorted(rows):
    return sorted(rows, key=lambda row: [float(np.sum(x)) for x in jax.tree.leaves(row[:2])])


def _kept(mine, rows, options, laned, looped):
    """The rows that a buffer holds. Lanes share it, so it is open how many of each are in it."""
    capacity, overflow = options["capacity"], options.get("overflow", "last")
    assert len(mine) <= capacity or not looped
    if not laned:
        kept = limited(rows, capacity, overflow)
        return kept if looped or len(mine) == len(kept) else rows
    if overflow == "last":
        return rows[len(rows) - len(mine) :]
    return rows[: len(mine)] if overflow == "first" else mine


def _same(got, want, key, reduce):
    (value, steps, loops), (wanted, wanted_steps, wanted_loops) = got, want
    assert jax.tree.structure(value) == jax.tree.structure(wanted), key
    for x, y in zip(jax.tree.leaves(value), jax.tree.leaves(wanted), strict=True):
        if reduce is None:
            assert x.dtype == y.dtype, key
        rtol = 2e-3 if x.dtype.itemsize == 2 and reduce in ROUNDED else ROUNDED.get(reduce, 0)
        np.testing.assert_allclose(x, y, rtol=rtol, err_msg=key)
    assert {name: int(at) for name, at in steps.items()} == wanted_steps, key
    assert loops is None or wanted_loops is None or loops == wanted_loops, (
        key,
        loops,
        wanted_loops,
    )
