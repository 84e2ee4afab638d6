"""A run that goes on has every entry once, whoever counted its steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax

pytestmark = pytest.mark.once


def going_on(directory, *loggers):
    return spoolax.run("a", None, *loggers, directory=directory, show=False, resume=True)


def test_steps_that_are_counted_go_on_where_they_were(tmp_path):
    @jax.jit
    def step(x):
        spoolax.log({"x": x})  # Two entries a step, so it is ahead of the steps of the loop.
        spoolax.log({"x": x})
        return x + 1.0

    def scanned(x):
        def body(x, _):
            spoolax.log({"inner": x})
            return x + 1.0, None

        return jax.lax.scan(body, x, length=2)[0]

    def train(stop=None):
        with going_on(tmp_path) as run:
            x, start = run.restored(0.0)
            for i in range(start, 6):
                x = step(x)
                spoolax.log({"python": i})
                x = jax.jit(scanned)(x)
                run.tap(lambda x: spoolax.log({"tapped": x}))(x)
                if i % 2:
                    run.checkpoint(x, i)
                if i == stop:
                    raise KeyboardInterrupt
            return run.path

    with pytest.raises(KeyboardInterrupt):
        train(stop=4)
    with spoolax.open(train()) as run:
        assert run["x"].steps.tolist() == np.repeat(np.arange(6), 2).tolist()
        assert run["x"][:].tolist() == np.repeat(3 * np.arange(6.0), 2).tolist()
        assert run["python"].steps.tolist() == run["python"][:].tolist() == list(range(6))
        assert run["inner"].steps.tolist() == list(range(12))
        assert run["inner"][:].tolist() == [3 * i + k for i in range(6) for k in (1, 2)]
        assert run["tapped"].steps.tolist() == list(range(6))
        assert run["tapped"][:].tolist() == [3.0 * i for i in range(1, 7)]


def test_runs_of_seeds_go_on(tmp_path):
    keys = jax.random.split(jax.random.key(0), 3)

    @jax.jit
    def step(x):
        return x + 1.0

    def train(stop=None, seeds=keys):
        with going_on(tmp_path) as run:
            states = jax.vmap(run.init)(seeds)
            x, start = run.restored(jnp.zeros(3))
            for i in range(start, 4):
                x = step(x)
                for lane in range(len(seeds)):
                    one = jax.tree.map(lambda leaf, lane=lane: leaf[lane], states)
                    run.log(one, spoolax.LogDict({"x": x[lane]}, steps={"step": {"x": i}}))
                if i == 1:
                    run.checkpoint(x, i)
                if i == stop:
                    raise KeyboardInterrupt
            return run.path

    with pytest.raises(KeyboardInterrupt):
        train(stop=2)
    with spoolax.open(train()) as run:
        assert list(run.runs) == ["run-0", "run-1", "run-2"]
        for one in run.runs.values():
            assert one["x"].steps.tolist() == [0, 1, 2, 3]
            assert one["x"][:].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("inner", [1, 4])
def test_every_simulation_of_a_run_goes_on_by_itself(tmp_path, inner):
    def step(key, x):
        return x + jax.random.normal(key)

    key, other = jax.random.split(jax.random.key(0))

    def simulate(stop=None):
        class Stop(spoolax.Logger):
            count = 0

            def log(self, state, i):
                self.count += 1
                if self.count == stop:
                    raise spoolax.StopRun

        with going_on(tmp_path, Stop()) as run:
            x = spoolax.simulate(step, 0.0, 12, key=key, logger=run, resume=run, inner=inner)
            x = spoolax.simulate(step, x, 9, key=other, logger=run, resume=run, inner=inner)
            return x, run.path

    want = spoolax.simulate(step, spoolax.simulate(step, 0.0, 12, key=key), 9, key=other)
    for stop in (5, 10):  # In the first one, then in the second.
        with pytest.raises(spoolax.StopRun):
            simulate(stop)
    got, path = simulate()
    assert float(got) == float(want)
    with spoolax.open(path) as run:
        assert run["value"].steps.tolist() == [*range(12), *range(9)]
        assert run["value"][-1] == want


def test_what_was_logged_after_a_checkpoint_is_dropped_whatever_its_step(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        with going_on(tmp_path) as run:
            run.log({"x": 1.0}, 100)
            run.log({"early": 1.0}, 0)
            run.checkpoint(0.0, 3)
            run.log({"x": 2.0}, 2)
            run.log({"new": 2.0}, 0)
            raise KeyboardInterrupt
    with going_on(tmp_path) as run:
        assert run.restored(0.0) == (0.0, 4)
        run.log({"x": 3.0}, 4)
    with spoolax.open(run.path) as found:
        assert found["x"][:].tolist() == [1, 3]
        assert found["early"][:].tolist() == [1]
        assert len(found["new"]) == 0
