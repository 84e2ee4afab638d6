"""Reading parts of a store, and into tables of other libraries."""

import jax.numpy as jnp
import pytest
from trajectories import write

import spoolax
from spoolax import errors
from spoolax.loggers import Once, Steps
from spoolax.storage import (
    HDF5StorageReader,
    HDF5StorageWriter,
    WriterGroupConfig,
)


def test_tables_of_other_libraries(tmp_path):
    states = [{"e": jnp.float32(i), "x": jnp.full(2, i)} for i in range(4)]
    path = tmp_path / "a.h5"
    schema = {
        "frames": WriterGroupConfig(lambda s: s, 2),
        "bare": WriterGroupConfig(lambda s: s["e"]),
    }
    with HDF5StorageWriter(path, schema, states[0]) as writer:
        for i, state in enumerate(states):
            writer.log(state, i)
    with HDF5StorageReader(path) as reader:
        frames = reader.focus_group("frames")
        table = frames.to_pandas()
        assert table["step"].tolist() == [0, 2]
        assert table["e"].tolist() == [0, 2]
        assert "x[1]" in table.columns
        assert frames.to_polars()["e"].to_list() == [0, 2]
        assert frames.to_xarray()["x"].shape == (2, 2)
        assert reader.focus_group("bare").to_pandas()["bare"].tolist() == [0, 1, 2, 3]


def test_parts_of_rows_are_read_alone(tmp_path):
    states = [{"x": jnp.full(3, i), "deep": {"e": 2 * i, "none": None}} for i in range(4)]
    path = write(tmp_path / "a.h5", lambda s: s, states)
    with spoolax.open(path) as reader:
        frames = reader.focus_group("frames")
        assert frames["deep"]["e"][1:3].tolist() == [2, 4]
        assert frames["deep"][:]["e"].tolist() == [0, 2, 4, 6]
        assert [int(row["deep"]["e"]) for row in frames] == [0, 2, 4, 6]
        assert list(frames["deep"]["e"].to_pandas()["e"]) == [0, 2, 4, 6]
        assert len(frames.to_pandas()) == 4
        assert "4 rows of 'frames' (deep/e: int32[], x: int32[3])" in repr(frames)
        assert "finished, 4 steps; 'frames'" in repr(reader.reader)
        with pytest.raises(errors.StorageError, match="no 'y', only 'deep', 'x'"):
            frames["y"]
    with pytest.raises(errors.StorageError, match="is closed"):
        frames[:]
    schema = {
        "once": WriterGroupConfig(lambda s: s, Once()),
        "none": WriterGroupConfig(lambda s: s, Steps(9)),
    }
    with HDF5StorageWriter(tmp_path / "b.h5", schema, 1.0) as writer:
        writer.log(1.0, 0)
    with spoolax.open(tmp_path / "b.h5") as reader:
        assert [float(row) for row in reader.focus_group("once")] == [1]
        assert len(reader.focus_group("none").to_pandas()) == 0
