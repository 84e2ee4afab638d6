"""Modules of equinox as what is logged: pytrees with functions, settings and arrays in them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import spoolax
from spoolax.storage import HDF5StorageWriter, SaveLogger, WriterGroupConfig

MODEL = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
WEIGHTS = eqx.filter(MODEL, eqx.is_array)


def train(x):
    def step(x, i):
        spoolax.log({"model": jax.tree.map(lambda leaf: leaf * x, WEIGHTS)}, step=i)
        return x + 1, None

    return jax.lax.scan(step, x, jnp.arange(3))[0]


def test_the_arrays_of_a_module_are_logged_as_a_module(unoptimized):
    _, logs = spoolax.spool(train)(1.0)
    assert jax.tree.structure(logs["model"]) == jax.tree.structure(WEIGHTS)
    assert logs["model"].layers[0].weight.shape == (3, 4, 2)
    found = []
    spoolax.tap(train, found.append)(1.0)
    spoolax.flush()
    for i, each in enumerate(found):
        model = eqx.combine(each["model"], MODEL)
        np.testing.assert_array_equal(model.layers[0].bias, logs["model"].layers[0].bias[i])
        model(jnp.ones(2))
    assert len(found) == 3


def test_the_arrays_of_a_module_are_stored(unoptimized, tmp_path):
    _, logs = spoolax.spool(train)(1.0)
    spoolax.save(tmp_path / "logs.h5", logs)
    with SaveLogger(tmp_path / "saved.h5") as logger:
        logger.tap(train)(1.0)
    schema = {"models": WriterGroupConfig(lambda state: state)}
    with HDF5StorageWriter(tmp_path / "written.h5", schema, WEIGHTS) as writer:
        for i in range(3):
            writer.log(jax.tree.map(lambda leaf: leaf * (1.0 + i), WEIGHTS), i)
    found = [spoolax.load(tmp_path / f"{name}.h5")["model"] for name in ("logs", "saved")]
    with spoolax.open(tmp_path / "written.h5") as reader:
        found.append(reader.focus_group("models")[:])
    for model in found:
        leaves = jax.tree.leaves(model)
        assert len(leaves) == len(jax.tree.leaves(WEIGHTS))
        jax.tree.map(np.testing.assert_array_equal, leaves, jax.tree.leaves(logs["model"]))
        assert model.activation is None
