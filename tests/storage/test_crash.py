"""Crashes and full disks: what was committed is there, and the run can be resumed."""

import json
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from trajectories import ALL_CRASHES, in_process, read

import spoolax
from spoolax.loggers import read_jsonl
from spoolax.storage import HDF5StorageReader

WRITER = """
    import sys, jax.numpy as jnp
    from spoolax.storage import *
    from spoolax.storage import _buffered
    _buffered.FLUSH_SECONDS = 0.01
    def view(i):
        return {"x": jnp.full((50, 3), i, jnp.float32), "e": 2 * i}
    schema = {"frames": WriterGroupConfig(view), "start": WriterGroupConfig(lambda i: i, Once())}
    compression, resume = "gzip" if "gzip" in sys.argv else None, "resume" in sys.argv
    writer = HDF5StorageWriter(
        sys.argv[1], schema, jnp.float32(0), compression=compression, resume=resume
    )
    with writer:
        first, is_ready = writer._store.row_count("frames"), False
        for i in range(first, 10**6):
            writer.log(jnp.float32(i), i)
            if not is_ready and writer._store.row_count("frames") > first:
                is_ready = True
                print("ready", flush=True)
"""


def test_a_disk_that_fills_up_while_a_run_is_resumed_loses_nothing(tmp_path):
    code = """
        import json, os, resource, sys, jax.numpy as jnp
        from spoolax.storage import *
        schema = {
            "frames": WriterGroupConfig(lambda s: s),
            "start": WriterGroupConfig(lambda s: s, Once()),
        }
        os.chdir(sys.argv[1])
        for path, size, limit in json.loads(sys.argv[2]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            x = jnp.zeros(size)
            try:
                with HDF5StorageWriter(path, schema, x, resume=True) as writer:
                    for i in range(300):
                        writer.log(x, i)
                print("written", flush=True)
            except OSError as error:
                print("refused", os.listdir(), len(HDF5StorageReader(path).focus_group("frames"))
                    if os.path.exists(path) else error, flush=True)
    """
    cases = [("a.h5", 1000, 1 << 40)]
    cases += [("a.h5", 1000, limit) for limit in (100_000, 600_000, 1_500_000)]
    cases += [("b.h5", 500_000, 1_500_000)]
    ran = in_process(code, tmp_path, json.dumps(cases))
    assert ran.returncode == 0, ran.stderr
    written, *refused, new = ran.stdout.splitlines()
    assert written == "written"
    assert refused == ["refused ['a.h5'] 300"] * 3
    assert new.startswith("refused ['a.h5'")
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert len(reader.focus_group("frames")) == 300


def test_a_full_disk_is_an_error_and_the_file_stays_readable(tmp_path):
    code = """
        import resource, sys, jax.numpy as jnp, spoolax
        from spoolax.storage import *
        resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, resource.RLIM_INFINITY))
        schema = {"frames": WriterGroupConfig(lambda s: {"x": s})}
        count = 0
        try:
            with HDF5StorageWriter(sys.argv[1], schema, jnp.zeros(10000)) as writer:
                for i in range(100000):
                    writer.log(jnp.full(10000, i, jnp.float32), i)
                    count += 1
        except OSError as error:
            print("refused", count, error)
    """
    ran = in_process(code, tmp_path / "a.h5")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("refused")
    assert "cannot grow" in ran.stdout
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        assert reader.status == "failed"
    rows = read(tmp_path / "a.h5")["x"]
    assert 20 < len(rows) < 250
    assert (rows == np.arange(len(rows), dtype=np.float32)[:, None]).all()


def checked_rows(path):
    with HDF5StorageReader(path) as reader:
        frames = reader.focus_group("frames")
        rows, steps = frames[:], frames.steps
        n = len(steps)
        assert (steps == np.arange(n)).all()
        assert (rows["x"] == np.arange(n, dtype=np.float32)[:, None, None]).all()
        assert (rows["e"] == 2 * np.arange(n)).all()
        return n, reader.status


@pytest.mark.parametrize("options", [(), ("gzip",)])
def test_every_row_is_complete_after_a_kill_and_the_run_can_be_resumed(options, tmp_path):
    path, rows = tmp_path / "a.h5", 0
    for number in range(4 if ALL_CRASHES else 2):
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), *options]
        writer = subprocess.Popen([*command, *(["resume"] if number else [])], stdout=-1)
        writer.stdout.readline()
        time.sleep(random.Random(number).random() * 0.3)
        writer.send_signal(signal.SIGKILL if number % 2 else signal.SIGTERM)
        writer.wait()
        writer.stdout.close()
        now, status = checked_rows(path)
        assert status == "crashed"
        assert now >= rows, "what was there is still there"
        rows = now
    assert rows > 0


def test_rows_can_be_read_while_they_are_written(tmp_path):
    path = tmp_path / "a.h5"
    command = [sys.executable, "-c", textwrap.dedent(WRITER).replace("10**6", "2000"), str(path)]
    with subprocess.Popen(command, stdout=-1) as writer:
        writer.stdout.readline()
        seen = []
        with HDF5StorageReader(path) as reader:
            for steps, rows in reader.focus_group("frames").follow(timeout=60):
                assert (rows["e"] == 2 * steps).all()
                seen += steps.tolist()
            assert reader.status == "finished"
    assert seen == list(range(2000))


@pytest.mark.parametrize("options", [(), ("gzip",)])
def test_all_readers_of_a_process_see_the_same_while_rows_are_written(options, tmp_path):
    path = tmp_path / "a.h5"
    code = textwrap.dedent(WRITER).replace("10**6", "6000")
    with subprocess.Popen([sys.executable, "-c", code, str(path), *options], stdout=-1) as writer:
        writer.stdout.readline()
        with HDF5StorageReader(path) as first, HDF5StorageReader(path) as second:
            one, two = first.focus_group("frames"), second.focus_group("frames")
            part = one["e"]
            for steps, rows in one.follow(timeout=60):
                assert (rows["e"] == 2 * steps).all()
                for e in (part[:], two[:]["e"], one[:]["e"], two["e"][:]):
                    assert (e == 2 * np.arange(len(e))).all()
    assert len(e) == 6000


def test_every_logger_beside_a_writer_is_up_to_date_when_a_simulation_is_killed(tmp_path):
    """The writer waits for the device, which is behind; lines, a bar and a file do not."""
    pytest.importorskip("tqdm")
    code = """
        import sys, jax, jax.numpy as jnp, spoolax
        from spoolax._watch import bar
        from spoolax.loggers import *
        from spoolax.storage import *
        bar.LINE_EVERY = 0.2
        def step(key, x):
            return jax.lax.fori_loop(0, 60, lambda i, x: jnp.tanh(x @ x), x)
        def first(x):
            return {"x": x[0, 0]}
        x = jnp.ones((100, 100))
        logger = CompositeLogger(
            HDF5StorageWriter(sys.argv[1] + "/a.h5", {"frames": WriterGroupConfig(first)}, x),
            SaveLogger(sys.argv[1] + "/b.h5", view=first),
            JsonlLogger(sys.argv[1] + "/c.jsonl", view=first),
            TqdmLogger(10**6, file=sys.stdout),
            PrintLogger(every=100, view=first),
        )
        spoolax.simulate(step, x, 10**6, key=jax.random.key(0), logger=logger)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    lines, begun = [], time.monotonic()
    with subprocess.Popen(command, stdout=-1, text=True) as simulation:
        impatient = threading.Timer(100, simulation.kill)
        impatient.start()
        for line in simulation.stdout:
            lines.append(line)
            done = len(lines) - sum("it/s" in line for line in lines)
            begun = time.monotonic() if done < 2 else begun
            if done > 3 and time.monotonic() - begun > 2:
                break
        impatient.cancel()
        simulation.kill()
    printed = [int(line.split()[1]) for line in lines if line.startswith("step")]
    assert printed == list(range(0, 100 * len(printed), 100))
    assert sum("it/s" in line for line in lines) >= 3, "the bar has moved"
    steps = [entry["_step"] for entry in read_jsonl(tmp_path / "c.jsonl")]
    assert steps == list(range(len(steps)))
    assert len(steps) > printed[-1]
    with HDF5StorageReader(tmp_path / "a.h5") as reader:
        rows = len(reader.focus_group("frames"))
    assert 0 < rows <= len(steps) + 10, "a file beside the writer is not behind it"
    assert 0 < len(spoolax.load(tmp_path / "b.h5")["x"]) <= len(steps) + 10
