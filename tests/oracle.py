"""Run a program with plain Python, appending what it logs to an ordinary list.

Programs are written with the `log`, `vmap` and `checkpoint` of this module. Usually these are
spoolax's and JAX's own. Inside `run`, under `jax.disable_jit()`, loops are Python loops, `log`
appends to a list, `vmap` calls the function for one lane after the other, and `checkpoint` is the
identity (JAX would trace the function, and there would be no values to append).
"""

import contextlib

import jax
import jax.numpy as jnp

import spoolax

_entries = None
_lane = ()
_silent = False
_prefix = ""


def log(data, **kwargs):
    if _silent:
        return
    data = {f"{_prefix}{key}": value for key, value in data.items()}
    if _entries is None:
        spoolax.log(data, **kwargs)
        return
    steps = {name: value for name, value in kwargs.items() if name not in ("tags", "explicit")}
    for key, value in data.items():
        # Under eager differentiation, this takes the value off its tangent.
        value, at = jax.tree.map(lambda x: jax.lax.stop_gradient(jnp.asarray(x)), (value, steps))
        leaves = jax.tree.leaves((value, at))
        if not any(isinstance(x, jax.core.Tracer) for x in leaves):
            _entries.append((_lane, key, value, at))


def vmap(f):
    def mapped(xs):
        global _lane
        if _entries is None:
            return jax.vmap(f)(xs)
        outer, outs = _lane, []
        for i in range(len(jax.tree.leaves(xs)[0])):
            _lane = (*outer, i)
            outs.append(f(jax.tree.map(lambda x: x[i], xs)))
        _lane = outer
        return jax.tree.map(lambda *ys: jnp.stack(ys), *outs)

    return mapped


def checkpoint(f):
    return f if _entries is not None else jax.checkpoint(f)


def run(f, *args):
    """Return what `f` logs, as a list of (lane, key, value, steps)."""
    global _entries
    _entries = []
    try:
        with jax.disable_jit():
            f(*args)
        return _entries
    finally:
        _entries = None


@contextlib.contextmanager
def silent():
    """Run programs as if their `log` lines were deleted."""
    global _silent
    _silent = True
    try:
        yield
    finally:
        _silent = False


@contextlib.contextmanager
def prefix(text):
    """Put a text in front of every key that is logged, by programs that are run side by side."""
    global _prefix
    before, _prefix = _prefix, text
    try:
        yield
    finally:
        _prefix = before
