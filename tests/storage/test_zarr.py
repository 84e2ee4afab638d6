"""Zarr hierarchies: what other programs find in them, what is in the way, and damage."""

import functools
import json
import shutil
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from trajectories import in_process, write

import spoolax
from spoolax.errors import LogFileError, LogValueError, MissingExtraError, StorageError
from spoolax.loggers import Once
from spoolax.storage import SaveLogger, WriterGroupConfig, ZarrStorageReader, ZarrStorageWriter
from spoolax.storage.zarr import ZarrBackend, _nodes, _place

zarr = pytest.importorskip("zarr")


written = functools.partial(write, kind=ZarrStorageWriter)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.zarr"


def test_zarr_reads_all_of_it(path):
    """As a hierarchy in which there is nothing that Zarr does not know."""
    schema = {
        "frames": WriterGroupConfig(lambda s: {"x": s, "deep": {"n": jnp.int32(7)}}),
        "start": WriterGroupConfig(lambda s: {"x": s}, Once()),
    }
    with ZarrStorageWriter(path, schema, jnp.zeros((2, 2)), units={"x": "nm"}) as writer:
        for i in range(20):
            writer.log(jnp.full((2, 2), float(i)), 3 * i)
    root = zarr.open_group(path, mode="r")
    members = dict(root.members(max_depth=None))
    arrays = {name for name, node in members.items() if isinstance(node, zarr.Array)}
    assert arrays == {"frames/x", "frames/deep/n", "frames/step", "start/x", "start/step"}
    assert set(members) - arrays == {"frames", "frames/deep", "start"}
    frames = root["frames"]
    assert (frames["x"][:, 0, 1] == np.arange(20)).all()
    assert (frames["step"][:] == 3 * np.arange(20)).all()
    assert (frames["deep/n"][:] == 7).all()
    assert dict(frames["x"].attrs) == {"units": "nm"}
    assert root["start/x"].shape == (2, 2)
    assert root.attrs["status"] == "finished"
    json.loads((path / "zarr.json").read_text(), parse_constant=pytest.fail)


def test_xarray_reads_a_group(path):
    xarray = pytest.importorskip("xarray")
    written(path, lambda s: {"x": s, "e": s[0]}, [jnp.full(3, float(i)) for i in range(5)])
    with xarray.open_zarr(path, group="frames", consolidated=False) as frames:
        assert frames["x"].dims == ("step", "size_3")
        assert frames["e"].sel(step=4) == 4


def test_other_programs_see_rows_during_the_run(path):
    schema = {"frames": WriterGroupConfig(lambda s: {"x": s})}
    with ZarrStorageWriter(path, schema, jnp.float32(0)) as writer:
        for i in range(3):
            writer.log(jnp.float32(i), i)
            writer.commit()
            assert zarr.open_group(path, mode="r")["frames/x"][:].tolist() == list(range(i + 1))


def test_small_rows_share_chunks_and_large_rows_are_cut(path):
    def view(s):
        return {"small": s, "large": jnp.zeros((9, 1000, 1000)) + s}

    schema = {"frames": WriterGroupConfig(view)}
    with ZarrStorageWriter(path, schema, jnp.float32(0)) as writer:
        writer.log(jnp.float32(1), 0)
    frames = zarr.open_group(path, mode="r")["frames"]
    assert frames["small"].chunks == (_nodes.ROWS_IN_CHUNK,)
    assert frames["large"].chunks == (1, 5, 1000, 1000)
    assert (frames["large"][:] == 1).all()


@pytest.mark.parametrize("compression", ["blosc", "zstd", "gzip", None])
def test_compression(compression, path):
    written(
        path, lambda s: {"x": s}, [jnp.zeros(1000) + i for i in range(50)], compression=compression
    )
    assert (zarr.open_group(path, mode="r")["frames/x"][:, 5] == np.arange(50)).all()
    size = sum(file.stat().st_size for file in path.rglob("c/*/0"))
    assert (size < 50_000) is (compression is not None)
    with ZarrStorageReader(path) as reader:
        assert reader.meta["storage"]["compression"] == compression


def test_options_that_make_no_sense_are_refused(path):
    with pytest.raises(LogValueError, match="use 'blosc', 'zstd', 'gzip' or None"):
        ZarrBackend(compression="lzf")
    with pytest.raises(LogValueError, match="`units` has 'y'"):
        written(path, lambda s: {"x": s}, [jnp.float32(0)], units={"y": "nm"})


def test_names_that_mean_something_to_zarr(path):
    state = {"zarr.json": 1.0, "__a": 2.0, "c": 3.0, "x.__lock": 4.0, "%5F_a": 5.0}
    written(path, lambda s: s, [state, state])
    with ZarrStorageReader(path) as reader:
        rows = reader.focus_group("frames")[:]
    assert {name: column.tolist() for name, column in rows.items()} == {
        name: [value, value] for name, value in state.items()
    }


def test_settings_may_be_infinite(path):
    written(path, lambda s: {"x": s}, [jnp.float32(0)], config={"limit": float("inf")})
    json.loads((path / "zarr.json").read_text(), parse_constant=pytest.fail)
    with ZarrStorageReader(path) as reader:
        assert reader.meta["config"] == {"limit": float("inf")}


def test_only_a_store_is_replaced(tmp_path):
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "mine.txt").write_text("mine")
    (tmp_path / "b.zarr").write_text("mine")
    for name, what in (("a.zarr", "a directory that is not a Zarr store"), ("b.zarr", "a file")):
        with pytest.raises(LogFileError, match=what):
            written(tmp_path / name, lambda s: {"x": s}, [jnp.float32(0)], mode="w")
    assert (tmp_path / "a.zarr" / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_store_is_replaced_when_the_new_one_is_complete(at_once, path, monkeypatch):
    """In one step if the system can do that; readers find the new one."""
    if not at_once:
        monkeypatch.setattr(_place.ctypes, "CDLL", lambda *_, **__: object())
    written(path, lambda s: {"x": s}, [jnp.float32(1)])
    with ZarrStorageReader(path) as reader:
        written(path, lambda s: {"y": s}, [jnp.float32(2)], mode="w")
        assert reader.status == "finished"
        assert reader.focus_group("frames")[:]["y"].tolist() == [2]
    assert [file.name for file in path.parent.iterdir()] == ["a.zarr"]
    assert not (path / "frames" / "x").exists()


def test_a_store_that_was_removed_is_not_written_any_further(path):
    schema = {"frames": WriterGroupConfig(lambda s: {"x": s})}
    with pytest.raises(LogFileError, match="has been removed or replaced"):
        with ZarrStorageWriter(path, schema, jnp.float32(0)) as writer:
            writer.log(jnp.float32(0), 0)
            writer.commit()
            shutil.rmtree(path)
            writer.log(jnp.float32(1), 1)
            writer.commit()


def damage_chunk(path):
    (path / "frames" / "x" / "c" / "0").write_bytes(b"nonsense")


def damage_root(path):
    (path / "zarr.json").write_text('{"attributes": {"spoolax_format": 1}}')


def remove_chunk(path):
    (path / "frames" / "x" / "c" / "0").unlink()


def remove_array(path):
    (path / "frames" / "x" / "zarr.json").unlink()


def name_other_files(path):
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(text.replace("frames", "../a.zarr/frames"))


def claim_many_rows(path):
    document = json.loads((path / "zarr.json").read_text())
    document["attributes"]["rows"]["frames"] = 10**17
    (path / "zarr.json").write_text(json.dumps(document))


def change_format(path):
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(text.replace('"spoolax_format": 1', '"spoolax_format": 7'))


@pytest.mark.parametrize(
    "damage",
    [
        damage_chunk,
        damage_root,
        remove_chunk,
        remove_array,
        name_other_files,
        claim_many_rows,
        change_format,
    ],
)
def test_damage_is_a_storage_error(damage, path):
    written(path, lambda s: {"x": s}, [jnp.float32(i) for i in range(3)])
    damage(path)
    with pytest.raises(StorageError):
        with ZarrStorageReader(path) as reader:
            reader.focus_group(reader.groups[0])[:]


@pytest.mark.parametrize("damage", [damage_chunk, remove_chunk])
def test_a_damaged_store_is_not_resumed(damage, path):
    """Nor is anything else about it changed."""
    written(path, lambda s: {"x": s}, [jnp.float32(i) for i in range(3)])
    damage(path)
    before = (path / "zarr.json").read_bytes()
    with pytest.raises(StorageError, match="damaged"):
        written(path, lambda s: {"x": s}, [jnp.float32(3)], resume=True)
    assert (path / "zarr.json").read_bytes() == before


def test_what_is_missing_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(MissingExtraError, match="Storing in Zarr needs tensorstore"):
        written(path, lambda s: {"x": s}, [jnp.float32(0)])


def test_storage_does_not_import_it_before_it_is_needed():
    ran = in_process(
        """
        import sys, spoolax.storage
        from spoolax.storage import HDF5StorageWriter, SaveLogger, ZarrStorageWriter
        print([name for name in ("tensorstore", "zarr") if name in sys.modules])
        """
    )
    assert ran.stdout.strip() == "[]", ran.stderr


def test_logs_without_a_schema(path):
    """A `SaveLogger` adds arrays during the run, without writing anything anew."""
    with SaveLogger(path, config={"rate": 0.5}) as logger:
        for i in range(4):
            logger.log({"loss": 1 / (1 + i)}, i)
            if i % 2:
                logger.log({"accuracy": i, "w": np.arange(3.0)}, i)
                logger.commit()
    logs = spoolax.load(path)
    assert logs["loss"].tolist() == [1, 1 / 2, 1 / 3, 1 / 4]
    assert logs.step["accuracy"].tolist() == [1, 3]
    assert logs.meta["config"] == {"rate": 0.5}
    with spoolax.open(path) as run:
        assert (run.status, run["w"].shape, run.last_step) == ("finished", (3,), 3)


def test_a_logdict_is_saved_as_it_is(path):
    _, logs = spoolax.spool(lambda x: spoolax.log({"x": x}, step=3))(1.0)
    spoolax.save(path, logs)
    assert repr(spoolax.load(path)) == repr(logs)


def test_a_run_for_each_key_has_a_store_of_its_own(tmp_path):
    with SaveLogger(tmp_path / "a.zarr") as logger:
        state = logger.init(0)
        logger.log(state, {"x": 1.0})
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["a-run-0.zarr"]
    assert spoolax.load(tmp_path / "a-run-0.zarr")["x"].tolist() == [1.0]
