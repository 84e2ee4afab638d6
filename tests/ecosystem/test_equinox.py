"""The loops of equinox."""

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax

pytestmark = pytest.mark.usefixtures("unoptimized")


def doubled(x, kind="checkpointed"):
    def body(x):
        spoolax.log({"x": x})
        return 2.0 * spoolax.log_grad("dx", x)

    return eqxi.while_loop(lambda x: x < 8.0, body, x, max_steps=8, kind=kind)


def test_the_backward_rule_of_a_checkpointed_loop_repeats_nothing():
    """It logs the cotangents, in its own order, and they are marked."""
    slope, logs = spoolax.spool(jax.grad(doubled))(1.0)
    assert slope == 8.0
    assert logs["x"].tolist() == [1.0, 2.0, 4.0]
    assert not np.any(logs.backward["x"])
    assert logs["dx"].tolist() == [2.0, 4.0, 8.0]
    assert np.all(logs.backward["dx"])
    seen = []
    spoolax.tap(jax.grad(doubled), seen.append)(1.0)
    spoolax.flush()
    entries = [(key, float(x), logs.origin.backward) for logs in seen for key, x in logs.items()]
    assert entries == [
        *(("x", x, False) for x in (1.0, 2.0, 4.0)),
        *(("dx", x, True) for x in (2.0, 4.0, 8.0)),
    ]


@pytest.mark.parametrize("kind", ["lax", "checkpointed"])
@pytest.mark.parametrize("vmaps", [1, 2])
def test_a_lane_whose_loop_has_ended_logs_nothing(kind, vmaps):
    """Although the loop goes on, and the test of the loop is the same for all lanes."""

    def f(x):
        return doubled(x, kind)

    xs = jnp.array([1.0, 4.0, 9.0])
    if vmaps == 2:
        f, xs = jax.vmap(f), xs[:, None]
    _, logs = spoolax.spool(jax.vmap(f))(xs)
    lanes = logs.valid["x"].reshape(-1, 3).T
    values = logs["x"].reshape(-1, 3).T
    found = [value[valid].tolist() for value, valid in zip(values, lanes, strict=True)]
    assert found == [[1.0, 2.0, 4.0], [4.0], []]


def test_a_spool_inside_vmap_keeps_what_each_lane_logged():
    """Nothing is added to a lane whose loop has ended; entries that are folded stay as they are."""
    xs = jnp.array([1.0, 4.0, 9.0])
    _, logs = jax.vmap(spoolax.spool(doubled, capacity=4))(xs)
    assert logs.valid["x"].sum(1).tolist() == [3, 1, 0]
    assert logs["x"][0, :3].tolist() == [1.0, 2.0, 4.0]
    assert logs["x"][1, 0] == 4.0
    _, logs = jax.vmap(spoolax.spool(doubled, reduce="sum"))(xs)
    assert logs["x"][:2].tolist() == [7.0, 4.0]
    _, logs = jax.vmap(spoolax.spool(jax.grad(doubled), reduce="sum", argnames="x"))(xs)
    assert logs["x"][:2].tolist() == [7.0, 4.0]
