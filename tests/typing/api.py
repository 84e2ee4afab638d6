"""What type checkers see of the public API. Checked with mypy, never run."""

import typing
from typing import assert_type

import jax

import spoolax


def f(x: jax.Array, *, n: int = 3) -> tuple[jax.Array, int]:
    logs = spoolax.log({"x": x}, tags=("a", "b"), prefix="p/", explicit=True, step=n)
    assert_type(logs, spoolax.LogDict)
    return x, n


spooled = spoolax.spool(f, argnames=["x"], interval=10, reduce="mean", capacity=5, overflow="thin")
(y, m), logs = spooled(jax.numpy.ones(3), n=4)
assert_type(y, jax.Array)
assert_type(m, int)
assert_type(logs, spoolax.LogDict)
assert_type(logs + logs, spoolax.LogDict)
assert_type(logs | {"a": 1.0}, spoolax.LogDict)
assert_type(logs.slice[2:3].filter("a*").prefix("b/"), spoolax.LogDict)
spoolax.spool(f, reduce=lambda a, b: a + b)

tapped = spoolax.tap(f, print, ["x"], batch=True, latency=0.5, overflow="drop")
y, m = tapped(jax.numpy.ones(3), n=4)
assert_type(y, jax.Array)
assert_type(m, int)
assert_type(tapped.dropped, int)
y, m = spoolax.watch(f, carry=True, primitives="cholesky", where="scan[0]/**")(y)
y, m = spoolax.watch_nan(f, lambda found: print(found.primitive, found.origin), stop=True)(y)
assert_type(spoolax.log_grad("y", y, step=m), jax.Array)
spoolax.primitives(f, y, n=3)
spoolax.flush()

with spoolax.loggers.CompositeLogger(spoolax.loggers.JsonlLogger("log.jsonl")) as logger:
    assert_type(logger, spoolax.loggers.CompositeLogger)
    y, m = logger.tap(f, logger.init(jax.random.key(0)), argnames="x")(y, n=4)
    y, m = logger.spool(f, interval=10)(y)
    logger.log({"y": y}, 3)
with spoolax.loggers.WandbLogger(project="p", config={"lr": 1e-3}, entity="me") as tracker:
    assert_type(tracker, spoolax.loggers.WandbLogger)
    y, m = tracker.tap(f)(y)
    assert_type(tracker.flush(), bool)
assert_type(spoolax.loggers.replay("spoolax-unsent", to="mlflow"), int)
assert_type(logger.every(3), spoolax.Logger[typing.Any])
y, m = spoolax.progress(f, depth=1)(y)
with spoolax.listening(logger, argnames="x", interval=3, collect=True):
    y, m = f(y)
with logger.listening(tags="a"), spoolax.progress(depth=1), spoolax.watching_nan(stop=True):
    y, m = f(y)
with spoolax.watching(print, carry=True, where="scan[0]/**") as watching:
    assert_type(watching.dropped, typing.Any)
state: dict[str, jax.Array] = {"y": y}
state = spoolax.simulate(lambda key, state: state, state, 10, key=jax.random.key(0), logger=logger)
state = spoolax.simulate(lambda key, s: s, state, 10, key=jax.random.key(0), until=lambda s: False)
was_interrupted: bool = spoolax.interrupted()


class Mine(spoolax.Logger[dict[str, jax.Array]]):
    def log(self, state: dict[str, jax.Array], step: int) -> None:
        print(step, state["y"])


with Mine() as mine:
    assert_type(mine, Mine)
    mine.log(state, 0)
