"""HDF5 files: what other programs see, compression, and the format."""

import json
import pathlib

import h5py
import jax.numpy as jnp
import numpy as np
import pytest
from trajectories import Inner, in_process, read, write

import spoolax
from spoolax._tap.host import host
from spoolax.loggers import Once
from spoolax.storage import (
    HDF5StorageReader,
    HDF5StorageWriter,
    WriterGroupConfig,
    _buffered,
)
from spoolax.storage.hdf5 import _table


def test_other_programs_can_read_it(tmp_path):
    import xarray

    states = [{"x": jnp.full((4, 3), i, jnp.float32), "e": jnp.float32(i)} for i in range(5)]
    path = write(tmp_path / "a.h5", lambda s: s, states)
    with h5py.File(path) as file:
        assert file["frames/x"].shape == (5, 4, 3)
        assert file["frames/step"][:].tolist() == [0, 1, 2, 3, 4]
    with xarray.open_dataset(path, group="frames", engine="h5netcdf") as data:
        assert data["e"].values.tolist() == [0, 1, 2, 3, 4]
        assert data["x"].dims[0] == "step"
        assert data["x"].sel(step=3).values.tolist() == [[3] * 3] * 4


def test_molecular_dynamics_programs_can_read_it(tmp_path):
    path, x = tmp_path / "a.h5", jnp.ones((5, 3))

    def view(i):
        box = jnp.full(3, 9.0)
        return {"position": i * x, "velocities": -i * x, "time": i / 2, "energy": i, "box": box}

    schema = {"frames": WriterGroupConfig(view, 2), "start": WriterGroupConfig(lambda i: i, Once())}
    units = {"position": "nm", "velocities": "nm ps-1", "time": "ps", "box": "nm"}
    options = {"layout": "h5md", "units": units}
    with HDF5StorageWriter(path, schema, jnp.float32(0), **options) as writer:
        for i in range(5):
            writer.log(jnp.float32(i), i)
    with HDF5StorageWriter(path, schema, jnp.float32(0), resume=True, **options) as writer:
        for i in range(5, 7):
            writer.log(jnp.float32(i), i)
    code = """
        import sys, MDAnalysis
        universe = MDAnalysis.Universe.empty(5)
        universe.load_new(sys.argv[1], format="H5MD")
        for now in universe.trajectory:
            print(now.data["step"], now.time, now.positions[0, 0], now.velocities[4, 2],
                  now.dimensions[0], now.data["trajectory/energy"])
    """
    ran = in_process(code, path)
    assert ran.returncode == 0, ran.stderr
    # In its own units: ten of them make a nanometre.
    found = [[float(x) for x in line.split()] for line in ran.stdout.splitlines()]
    assert found == [[i, i / 2, 10 * i, -10 * i, 90, i] for i in (0, 2, 4, 6)]
    with HDF5StorageReader(path) as reader:
        assert reader.focus_group("frames")[:]["energy"].tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("compression", [None, "gzip", "lzf", "zstd"])
def test_rows_are_compressed_by_the_chunk_and_can_be_read_at_any_time(
    compression, tmp_path, monkeypatch
):
    monkeypatch.setattr(_buffered, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(_table, "ROWS_IN_CHUNK", 8)
    monkeypatch.setattr(_table, "STEPS_IN_CHUNK", 4)
    path, x = tmp_path / "a.h5", np.arange(21 * 5, dtype=np.float32).reshape(21, 5)
    schema = {"frames": WriterGroupConfig(lambda s: {"x": s, "e": s[0]})}
    options = {"compression": compression, "mode": "w"}
    writer = HDF5StorageWriter(path, schema, jnp.asarray(x[0]), **options)
    with writer, HDF5StorageReader(path) as reader:
        for i in range(20):
            writer.log(jnp.asarray(x[i]), i)
            host.wait()
            frames = reader.focus_group("frames")
            assert frames.steps.tolist() == list(range(i + 1))
            assert (frames[:]["x"] == x[: i + 1]).all()
            assert (frames[i // 2 :]["e"] == x[i // 2 : i + 1, 0]).all()
    with h5py.File(path) as file:
        assert (file["frames/x"][:] == x[:20]).all(), "other programs find all of it"
    with HDF5StorageWriter(
        path, schema, jnp.asarray(x[0]), resume=True, compression=compression
    ) as writer:
        writer.log(jnp.asarray(x[20]), 20)
    assert (read(path)["x"] == x).all()


def test_a_slow_run_makes_no_larger_file_than_a_fast_one(tmp_path, monkeypatch):
    def size(compression):
        path = tmp_path / "a.h5"
        noise = np.random.default_rng(0).random((300, 500), np.float32)
        schema = {"frames": WriterGroupConfig(lambda s: s)}
        options = {"compression": compression, "mode": "w"}
        with HDF5StorageWriter(path, schema, noise[0], **options) as writer:
            for i, x in enumerate(noise):
                writer.log(jnp.asarray(x), i)
                if _buffered.FLUSH_SECONDS == 0:
                    host.wait()
        return path.stat().st_size

    fast = [size(None), size("gzip")]
    monkeypatch.setattr(_buffered, "FLUSH_SECONDS", 0)
    slow = [size(None), size("gzip")]
    assert slow[0] <= fast[0] + 8192
    assert slow[1] <= fast[1] + 8192


def test_the_structure_in_the_file_is_json(tmp_path):
    path = write(tmp_path / "a.h5", lambda s: Inner(s, s), [1.0])
    with h5py.File(path) as file:
        structure = json.loads(file["frames"].attrs["table"])["structure"]
    assert structure["kind"] == "class Inner"
    assert [name for name, _ in structure["children"]] == ["b", "a"]


def test_files_of_every_version_can_be_read():
    """One file for each version of the format, kept for ever."""
    with spoolax.open(pathlib.Path(__file__).parents[1] / "data" / "format-1.h5") as reader:
        assert (reader.status, reader.steps_run) == ("finished", 6)
        assert reader.meta["config"] == {"rate": 0.5}
        assert reader.focus_group("start")[...]["x"].tolist() == [0, 1, 2]
        frames = reader.focus_group("frames")
        rows = frames[:]
        assert frames.steps.tolist() == [0, 2, 4]
        assert rows["x"].tolist() == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
        assert rows["half"].dtype == jnp.bfloat16
        assert rows["half"].astype(np.float32).tolist() == rows["x"].tolist()
        assert rows["deep"][0].tolist() == [False, True, True]
        assert rows["deep"][1][0].tolist() == [3, 9, 15]
