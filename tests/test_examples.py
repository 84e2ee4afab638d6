"""The examples run, and what they compute is right."""

import importlib.util
import pathlib
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax
from spoolax import testing
from spoolax.loggers import CompositeLogger, HDF5StorageWriter, PlotLogger

pytestmark = pytest.mark.once

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def _settings_of_users():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def _compiled_quickly():
    """For examples that take far longer to compile than to run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_liquid_keeps_its_energy(tmp_path):
    """Velocity Verlet has no drift, the crystal melts, and momentum is conserved."""
    example, key = load("lennard_jones"), jax.random.key(0)
    start = jax.jit(example.start)(key)  # One program, rather than a hundred.
    captured = testing.capture(every=20, view=example.energies)
    stored = HDF5StorageWriter(tmp_path / "a.h5", example.SCHEMA, start)
    logger = CompositeLogger(
        captured,
        stored,
        PlotLogger(tmp_path / "plot.png", "total", every=500, view=example.energies),
    )
    final = spoolax.simulate(
        example.step, start, 3000, key=key, logger=logger, warmup=500, inner=100
    )
    total, temperature = (np.array(captured.values(k)) for k in ("total", "temperature"))
    assert len(total) == 150
    assert np.ptp(total) < 5e-4 * abs(total.mean())
    assert abs(total[-50:].mean() - total[:50].mean()) < 5e-5 * abs(total.mean())
    assert 0.5 < temperature.mean() < 0.9, "equipartition: half of the heat went into melting"
    np.testing.assert_allclose(final.velocities.mean(0), 0, atol=1e-5)
    forces = -jax.jit(jax.grad(example.potential))(final.positions)
    np.testing.assert_allclose(final.forces, forces, rtol=1e-3, atol=1e-3)
    assert (tmp_path / "plot.png").exists()
    with spoolax.open(tmp_path / "a.h5") as reader:
        np.testing.assert_array_equal(reader.focus_group("energies")[::2]["total"], total)
        assert reader.focus_group("box")[...]["atoms"] == example.ATOMS
        assert reader.focus_group("frames")[:]["positions"].shape == (60, example.ATOMS, 3)


def test_the_magnet_agrees_with_onsager(tmp_path):
    """Energy and magnetisation per spin, in the ordered and in the disordered phase."""
    example = load("ising")
    temperatures = (2.0, 3.0)
    means = example.run(tmp_path / "sweeps.h5", 2000, temperatures)
    for temperature, mean in zip(temperatures, means, strict=True):
        exact = example.exact(temperature)
        assert abs(mean["energy"] - exact["energy"]) < 0.01
        assert abs(mean["magnetisation"] - exact["magnetisation"]) < (
            0.01 if temperature < 2 else 0.06
        )


def test_onsager_at_the_critical_point():
    example = load("ising")
    critical = 2 / np.log(1 + np.sqrt(2))
    assert abs(example.exact(critical + 1e-9)["energy"] + np.sqrt(2)) < 1e-6
    assert example.exact(critical + 1e-3)["magnetisation"] == 0
    assert example.exact(0.5)["magnetisation"] == pytest.approx(1)


@pytest.mark.usefixtures("_compiled_quickly")
def test_the_demo_runs(capsys, monkeypatch):
    example = load("train")
    monkeypatch.setattr(example, "STEPS", 500)
    example.main()
    printed = capsys.readouterr().out
    assert "step 499  loss=" in printed
    assert "float32[10]" in printed
    assert "reduced on the device" in printed


@pytest.mark.usefixtures("_compiled_quickly")
def test_spectra_are_fitted(tmp_path, capsys):
    example = load("spectrum")
    fit, fits = example.main(tmp_path, count=30)
    assert {path.name for path in tmp_path.iterdir()} == {"spectrum.png", "iterations.png"}
    assert fit.success
    assert fits.success.all()
    found = np.median(fits[0]["centre"], axis=0)
    np.testing.assert_allclose(found, example.TRUE["centre"], atol=0.05)
    assert "in truth" in capsys.readouterr().out


def test_examples_are_scripts():
    for path in EXAMPLES.glob("*.py"):
        runpy.run_path(str(path), run_name="imported")
        assert '__name__ == "__main__"' in path.read_text()


def test_the_state_has_arrays_only():
    example = load("lennard_jones")
    assert all(
        isinstance(x, jnp.ndarray) for x in jax.tree.leaves(example.start(jax.random.key(1)))
    )
