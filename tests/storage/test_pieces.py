"""Rows that are spread over devices: written piece by piece, into chunks that nobody shares."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from spoolax.errors import StorageError
from spoolax.storage._reader import StorageReader
from spoolax.storage._store.dtypes import column_type
from spoolax.storage._store.pieces import Pieces, pieces_of
from spoolax.storage._store.tables import TableSpec
from spoolax.storage._writable import WritableStore
from spoolax.storage.hdf5 import HDF5Backend
from spoolax.storage.zarr import ZarrBackend

pytest.importorskip("tensorstore")
META = {"attributes": {}, "config": {}, "start": 1.0}
WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
KINDS = {"rows": PartitionSpec("d"), "columns": PartitionSpec(None, "d"), "all": PartitionSpec()}


def spread(x, kind):
    return jax.device_put(x, NamedSharding(Mesh(np.array(jax.devices()[:2]), "d"), KINDS[kind]))


def table(grid, timed=True, dtype="float32", shape=(4, 6)):
    columns = [("x", column_type(dtype, shape, ""))]
    about = {"grid": {"x": grid}} if grid else {}
    return TableSpec("rows", {"leaf": "x"}, columns, timed, about)


def opened(path, spec, backend):
    return WritableStore(backend, path, lambda _: [spec], META, writer="a test")


def read(path, backend):
    with StorageReader(path, backend=backend) as reader:
        return reader.focus_group("rows")[:]


@pytest.mark.parametrize(("kind", "grid"), [("rows", (2, 6)), ("columns", (4, 3)), ("all", (4, 6))])
def test_each_piece_becomes_a_chunk_of_its_own(kind, grid, tmp_path):
    row = pieces_of(spread(WHOLE, kind))
    assert row.grid() == grid
    assert len(row.pieces) == (1 if kind == "all" else 2), "what is on all devices, once"
    path = tmp_path / "a.zarr"
    store = opened(path, table(grid), ZarrBackend())
    store.append("rows", [0, 1], [[row, row.map(lambda x: -x)]])
    store.close("finished")
    assert (read(path, ZarrBackend()) == np.stack([WHOLE, -WHOLE])).all()
    chunks = [file for file in (path / "rows/x/c").rglob("*") if file.is_file()]
    assert len(chunks) == 2 * len(row.pieces)


def test_types_that_zarr_does_not_know_are_written_as_bits(tmp_path):
    x = spread(jax.numpy.arange(24.0, dtype="bfloat16").reshape(4, 6), "rows")
    store = opened(tmp_path / "a.zarr", table((2, 6), dtype="bfloat16"), ZarrBackend())
    store.append("rows", [0], [[pieces_of(x)]])
    store.close("finished")
    assert (read(tmp_path / "a.zarr", ZarrBackend())[0] == np.asarray(x)).all()


def test_a_table_without_a_time_axis_takes_pieces(tmp_path):
    store = opened(tmp_path / "a.zarr", table((2, 6), timed=False), ZarrBackend())
    store.append("rows", [0], [[pieces_of(spread(WHOLE, "rows"))]])
    store.close("finished")
    assert (read(tmp_path / "a.zarr", ZarrBackend()) == WHOLE).all()


def test_other_stores_get_whole_rows(tmp_path):
    row = pieces_of(spread(WHOLE, "rows"))
    store = opened(tmp_path / "a.h5", table(None), HDF5Backend())
    store.append("rows", [0], [[row]])
    with pytest.raises(StorageError, match="spread over several processes"):
        store.append("rows", [1], [[Pieces(row.shape, row.dtype, row.pieces[:1])]])
    store.close("finished")
    assert (read(tmp_path / "a.h5", HDF5Backend()) == WHOLE[None]).all()


def test_pieces_that_would_share_chunks_are_refused(tmp_path):
    """Two processes that write parts of the same chunk would undo each other's work."""
    for number, grid in enumerate([(4, 3), None]):
        store = opened(tmp_path / f"{number}.zarr", table(grid), ZarrBackend())
        with pytest.raises(StorageError, match="do not fit its chunks"):
            store.append("rows", [0], [[pieces_of(spread(WHOLE, "rows"))]])
        assert store.row_count("rows") == 0
        store.close("failed")


def test_processes_write_their_own_pieces_and_the_first_commits(tmp_path):
    """Rows count when all have written theirs, and if one fails, they do not."""
    path, fails = Path(tmp_path / "a.zarr"), False
    one, other = pieces_of(spread(WHOLE, "rows")).pieces

    def agree(name, rows, commit):
        assert (name, rows) == ("rows", store.row_count("rows") + 1)
        if fails:
            raise ConnectionError("the other one died")
        with StorageReader(path, backend=ZarrBackend()) as reader:
            count = len(reader.focus_group("rows"))
        assert count == store.row_count("rows"), "they do not count before"
        second.begin({"x": [Pieces(WHOLE.shape, "float32", [other])]}, count).wait()
        commit(rows)

    backend = ZarrBackend()
    backend.wait_with(agree)
    store = opened(path, table((2, 6)), backend)
    second = ZarrBackend().piece_writer(path, "rows")
    mine = [[Pieces(WHOLE.shape, "float32", [one])]]
    for step in range(2):
        store.append("rows", [step], mine)
    fails = True
    with pytest.raises(ConnectionError):
        store.append("rows", [2], mine)
    store.close("failed")
    assert (read(path, ZarrBackend()) == np.stack([WHOLE, WHOLE])).all()
