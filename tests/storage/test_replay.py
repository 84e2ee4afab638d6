"""A crash at any moment: every prefix of what the writer writes is a file that can be read.

The system calls of a writer are recorded with strace, and replayed one by one.
"""

import re
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from trajectories import ALL_CRASHES

from spoolax.storage import HDF5StorageReader

ROWS = 30
WRITER = f"""
    import sys, jax.numpy as jnp
    from spoolax._tap.host import host
    from spoolax.storage import HDF5StorageWriter, Once, WriterGroupConfig, _buffered
    _buffered.FLUSH_SECONDS = 0.0
    schema = {{
        "frames": WriterGroupConfig(lambda i: {{"x": jnp.full(7, i), "e": 2 * i}}),
        "start": WriterGroupConfig(lambda i: i, Once()),
    }}
    with HDF5StorageWriter(sys.argv[1], schema, jnp.float32(0)) as writer:
        for i in range({ROWS}):
            writer.log(jnp.float32(i), i)
            host.wait()
"""


def recorded(path, trace):
    """Run the writer, and return what it did to the file."""
    calls = "openat,pwrite64,ftruncate,fallocate,close,unlink,rename"
    strace = ["strace", "-f", "-e", f"trace={calls}", "-xx", "-s", "1000000", "-o", str(trace)]
    command = [*strace, sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode and "ptrace" in ran.stderr:
        pytest.skip("strace may not be used here")
    assert ran.returncode == 0, ran.stderr
    names = [path, path.with_name(f".{path.name}.draft")]
    names = ["".join(f"\\x{byte:02x}" for byte in str(one).encode()) for one in names]
    mine, done = set(), []
    for line in trace.read_text().splitlines():
        call = line.split(maxsplit=1)[1]
        if found := re.match(r'openat\(AT_FDCWD, "([^"]*)", ([A-Z_|]+).*\) = (\d+)', call):
            opens = found[1] in names and "RDWR" in found[2]
            (mine.add if opens else mine.discard)(found[3])
        elif call.startswith("unlink") and names[1] in call:
            done.clear()  # It was only made to see whether there is room.
        elif call.startswith("rename") and names[1] in call:
            done.append((0, "rename"))
        elif found := re.match(r"close\((\d+)\)", call):
            mine.discard(found[1])
        elif found := re.match(r'pwrite64\((\d+), "((?:\\x..)*)", (\d+), (\d+)\)', call):
            data = bytes.fromhex(found[2].replace("\\x", ""))
            assert len(data) == int(found[3]), "strace has cut it off"
            done += [(int(found[4]), data)] * (found[1] in mine)
        elif found := re.match(r"(ftruncate|fallocate)\((\d+), (?:0, )?(\d+)(?:, (\d+))?\)", call):
            done += [(int(found[3]) + int(found[4] or 0), found[1])] * (found[2] in mine)
    return done


def replayed(done):
    """Yield the file after each of the calls, once it has its name."""
    file, visible = bytearray(), False
    for at, what in done:
        if isinstance(what, bytes):
            file.extend(bytes(max(0, at + len(what) - len(file))))
            file[at : at + len(what)] = what
        elif at > len(file):
            file.extend(bytes(at - len(file)))
        elif what == "ftruncate":
            del file[at:]
        visible = visible or what == "rename"
        if visible:
            yield bytes(file)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_every_moment_of_a_run_leaves_a_file_that_can_be_read(tmp_path):
    done = recorded(tmp_path / "a.h5", tmp_path / "trace")
    assert len(done) > 5 * ROWS
    state, best, moments = tmp_path / "state.h5", 0, list(replayed(done))
    assert len(moments) > 5 * ROWS
    for content in moments if ALL_CRASHES else [*moments[::5], moments[-1]]:
        state.write_bytes(content)
        with HDF5StorageReader(state) as reader:
            frames = reader.focus_group("frames")
            rows, steps = frames[:], frames.steps
        count = len(steps)
        assert count >= best, "a row has gone"
        assert (steps == np.arange(count)).all()
        assert (rows["e"] == 2 * np.arange(count)).all()
        assert (rows["x"] == np.arange(count)[:, None]).all()
        best = count
    assert best == ROWS
