"""Writers of Zarr that die, and disks that fill up: what was committed is there, and only that."""

import json
import random
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from trajectories import ALL_CRASHES, in_process

from spoolax.storage import WriterGroupConfig, ZarrStorageReader, ZarrStorageWriter

pytest.importorskip("tensorstore")

# Processes that kill themselves while the n-th batch of writes is under way, or just after it.
KILLED = """
    import json, os, signal, sys, warnings, numpy as np
    warnings.simplefilter("ignore")  # Nothing runs beside us when we fork.
    from spoolax.storage._writable import WritableStore
    from spoolax.storage.zarr import ZarrBackend, _nodes, _state, _tensorstore, _writer
    from spoolax.testing._store_contract import _table
    _nodes.ROWS_IN_CHUNK = 4

    def write(path, dies_at, is_late, note):
        count, finish = 0, _tensorstore.finish
        def dying(writes, where):
            nonlocal count
            count += 1
            writes = list(writes)
            if count == dies_at and not is_late:
                os.kill(os.getpid(), signal.SIGKILL)
            done = finish(writes, where)
            if count == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return done
        _tensorstore.finish = _writer.finish = _state.finish = dying
        table = _table("rows", {"x": np.zeros(3), "n": np.int32(0)})
        meta = {"attributes": {}, "config": {}, "start": 1.0}
        store = WritableStore(ZarrBackend(), path, lambda _: [table], meta, writer="a test")
        rows = 0
        for count_of_batch in (1, 2, 3, 4, 5, 1):
            n = np.arange(rows, rows + count_of_batch, dtype=np.int32)
            os.pwrite(note, json.dumps([rows, count_of_batch]).encode().ljust(20), 0)
            store.append("rows", n, [np.stack([n * 1.0] * 3, axis=1), n])
            rows += count_of_batch
        os.pwrite(note, json.dumps([rows, 0]).encode().ljust(20), 0)
        store.close("finished")

    for dies_at, is_late in json.loads(sys.argv[2]):
        path = f"{sys.argv[1]}/{dies_at}-{is_late}.zarr"
        note = os.open(f"{path}.note", os.O_RDWR | os.O_CREAT)
        child = os.fork()
        if not child:
            write(path, dies_at, is_late, note)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, dies_at
    print("all died")
"""


def test_only_complete_rows_count_wherever_the_writer_dies(tmp_path):
    first = 5  # Before that, the store is not in place.
    points = range(first, 17) if ALL_CRASHES else range(first, 17, 3)
    deaths = [(dies_at, is_late) for dies_at in points for is_late in (False, True)]
    ran = in_process(KILLED, tmp_path, json.dumps(deaths))
    assert ran.stdout == "all died\n", ran.stderr
    for dies_at, is_late in deaths:
        path = tmp_path / f"{dies_at}-{is_late}.zarr"
        note = tmp_path / f"{path.name}.note"
        committed, more = json.loads(note.read_text()) if note.stat().st_size else (0, 0)
        with ZarrStorageReader(path) as reader:
            assert reader.status == "crashed"
            rows, steps = reader.focus_group("rows")[:], reader.steps("rows")
        count = len(steps)
        assert count in (committed, committed + more), "all of an append, or nothing of it"
        assert (steps == np.arange(count)).all()
        assert (rows["n"] == np.arange(count)).all()
        assert (rows["x"] == np.arange(count)[:, None]).all()


WRITER = """
    import sys, jax.numpy as jnp
    from spoolax.storage import *
    from spoolax.storage import _buffered, zarr
    {often}
    def view(i):
        return dict(x=jnp.full((50, 3), i, jnp.float32), e=2 * i)
    schema = dict(frames=WriterGroupConfig(view), start=WriterGroupConfig(lambda i: i, Once()))
    with ZarrStorageWriter(sys.argv[1], schema, jnp.float32(0), resume=True) as writer:
        first, is_ready = writer._store.row_count("frames"), False
        for i in range(first, {steps}):
            writer.log(jnp.float32(i), i)
            if not is_ready and writer._store.row_count("frames") > first:
                is_ready = True
                print("ready", flush=True)
"""


def checked_rows(path):
    with ZarrStorageReader(path) as reader:
        frames = reader.focus_group("frames")
        count = len(frames)
        rows, steps = frames[:count], frames.steps[:count]
        assert (steps == np.arange(count)).all()
        assert (rows["x"] == np.arange(count, dtype=np.float32)[:, None, None]).all()
        assert (rows["e"] == 2 * np.arange(count)).all()
        return count, reader.status


# Either whatever there is, from time to time, or the next rows while the last are being written.
OFTEN = {
    "each alone": "_buffered.FLUSH_SECONDS = 0.01",
    "several at once": "zarr.ZarrBackend.batch_bytes = 5000",
}


def writer_of(path, steps, often=OFTEN["each alone"]):
    code = textwrap.dedent(WRITER).format(steps=steps, often=often)
    return subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=-1)


@pytest.mark.parametrize("often", OFTEN.values(), ids=OFTEN)
def test_a_run_that_is_killed_can_be_read_before_and_after_and_resumed(tmp_path, often):
    path, rows = tmp_path / "a.zarr", 0
    for number in range(4 if ALL_CRASHES else 2):
        with writer_of(path, 10**6, often) as writer:
            try:
                writer.stdout.readline()
                for _ in range(5):
                    now, status = checked_rows(path)
                    assert status == "running"
                    assert now >= rows, "what was there is still there"
                    rows = now
                time.sleep(random.Random(number).random() * 0.2)
            finally:
                writer.kill()
        now, status = checked_rows(path)
        assert status == "crashed"
        assert now >= rows
        rows = now
    assert rows > 0


def test_files_that_were_left_half_written_are_no_part_of_what_follows(tmp_path):
    """Nor do they stay. tensorstore's default would write over the beginning of such a file."""
    path, schema = tmp_path / "a.zarr", {"frames": WriterGroupConfig(lambda s: {"x": s})}
    with ZarrStorageWriter(path, schema, np.float32(0)) as writer:
        for step in range(3):
            writer.log(np.float32(step), step)
            writer.commit()
            for file in [path / "zarr.json", path / "frames/x/c/0"]:
                file.with_name(f"{file.name}.__lock").write_bytes(b"x" * 100_000)
    with ZarrStorageReader(path) as reader:
        assert reader.focus_group("frames")[:]["x"].tolist() == [0, 1, 2]
    with ZarrStorageWriter(path, schema, np.float32(0), resume=True):
        assert not list(path.rglob("*.__lock"))


def test_rows_can_be_followed_while_another_process_writes_them(tmp_path):
    path = tmp_path / "a.zarr"
    with writer_of(path, 2000) as writer:
        writer.stdout.readline()
        seen = []
        with ZarrStorageReader(path) as reader:
            for steps, rows in reader.focus_group("frames").follow(timeout=60):
                assert (rows["e"] == 2 * steps).all()
                seen += steps.tolist()
            assert reader.status == "finished"
    assert seen == list(range(2000))


@pytest.mark.parametrize("at_once", [32 << 20, 100_000])
def test_a_full_disk_is_an_error_and_the_store_stays_readable(tmp_path, at_once):
    code = """
        import resource, sys, numpy as np, jax.numpy as jnp
        from spoolax.storage import *
        from spoolax.storage.zarr import ZarrBackend
        ZarrBackend.batch_bytes = int(sys.argv[2])
        schema = {"frames": WriterGroupConfig(lambda s: {"x": s})}
        x = np.random.default_rng(0).random(20_000, np.float32)
        try:
            writer = ZarrStorageWriter(sys.argv[1], schema, jnp.asarray(x), compression=None)
            with writer:
                for i in range(10):
                    if i == 5:  # No file can be larger now, and the chunk with row 4 would be.
                        writer.commit()
                        limits = 100_000, resource.RLIM_INFINITY
                        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
                    writer.log(jnp.asarray(x + i), i)
        except OSError as error:
            print("refused", error)
    """
    ran = in_process(code, tmp_path / "a.zarr", str(at_once))
    assert ran.stdout.startswith("refused"), ran.stderr
    assert "cannot grow" in ran.stdout
    with ZarrStorageReader(tmp_path / "a.zarr") as reader:
        assert reader.status == "failed"
        rows = reader.focus_group("frames")[:]["x"]
    expected = np.random.default_rng(0).random(20_000, np.float32)
    assert len(rows) == 5
    assert (rows == expected + np.arange(5, dtype=np.float32)[:, None]).all()
