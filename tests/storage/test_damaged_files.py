"""Files that are damaged, malicious, or not ours."""

import json
import pathlib
import shutil

import h5py
import jax.numpy as jnp
import numpy as np
import pytest
from trajectories import ALL_CRASHES, in_process, read, write

from spoolax import errors
from spoolax.storage import (
    HDF5StorageReader,
)
from spoolax.storage.hdf5._h5py import put_text


def test_files_of_others_are_refused(tmp_path):
    with pytest.raises(errors.StorageError, match="There is no file"):
        HDF5StorageReader(tmp_path / "nothing.h5")
    (tmp_path / "text.h5").write_text("hello")
    with pytest.raises(errors.StorageError, match="not an HDF5 file"):
        HDF5StorageReader(tmp_path / "text.h5")
    with h5py.File(tmp_path / "other.h5", "w", libver="v110") as file:
        file["x"] = 1
    with pytest.raises(errors.StorageError, match="not written by spoolax"):
        HDF5StorageReader(tmp_path / "other.h5")
    path = write(tmp_path / "new.h5", lambda s: s, [1.0])
    with h5py.File(path, "r+") as file:
        file.attrs["spoolax_format"] = 99
    with pytest.raises(errors.StorageError, match="has format 99"):
        HDF5StorageReader(path)


def test_links_and_sizes_are_not_believed(tmp_path):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["x"] = np.arange(3.0)
    path = write(tmp_path / "a.h5", lambda s: {"x": s, "y": s}, [1.0, 2.0])
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file["frames/x"] = h5py.ExternalLink(str(secret), "x")
    with pytest.raises(errors.StorageError, match="links to another one"):
        read(path)
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file.create_dataset("frames/x", (2, 10**9), "f4", chunks=(1, 1024))
    with pytest.raises(errors.StorageError, match="does not have the shape"):
        read(path)
    huge = write(tmp_path / "b.h5", lambda s: jnp.zeros(1 << 14) + s, [1.0, 2.0])
    with h5py.File(huge, "r+") as file:
        del file["frames/value"], file["_ran"]
        file.create_dataset("frames/value", (2, 1 << 14), "f4", chunks=(1, 1024))
        file.create_dataset("_ran", (1 << 40,), "i8")
    with pytest.raises(errors.StorageError, match="claims to hold more"):
        read(huge)
    with HDF5StorageReader(huge) as reader:
        assert reader.status == "finished"
        with pytest.raises(errors.StorageError, match="not a number"):
            reader.steps_run  # noqa: B018
    with h5py.File(path) as file:
        table = file["frames"].attrs["table"].decode()
    there = json.dumps(json.loads(table)["structure"])
    assert there in table
    nested = '{"leaf": "x"}'
    for _ in range(200):
        nested = f'{{"kind": "dict", "children": [["a", {nested}]]}}'
    for structure in ("x", "[]", nested, '{"kind": "dict", "children": 3}'):
        with h5py.File(path, "r+") as file:
            put_text(file["frames"], "table", table.replace(there, structure))
        with pytest.raises(errors.StorageError):
            read(path)


def test_numbers_of_other_files_are_not_read(tmp_path):
    other = tmp_path / "other.bin"
    other.write_bytes(np.arange(8, dtype=np.float32).tobytes())
    path = write(tmp_path / "a.h5", lambda s: {"x": s, "y": s}, [1.0, 2.0])
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file["frames"].create_dataset("x", (2,), "f4", external=[(str(other), 0, 8)])
    with pytest.raises(errors.StorageError, match="stored in another file"):
        read(path)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = np.arange(2, dtype=np.float32)
    virtual = h5py.VirtualLayout((2,), "f4")
    virtual[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "x", (2,))
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file["frames"].create_virtual_dataset("x", virtual)
    with pytest.raises(errors.StorageError, match="stored in another file"):
        read(path)
    with h5py.File(path, "r+") as file:
        del file["frames/x"]
        file["frames/x"] = file["frames/y"]
    with pytest.raises(errors.StorageError, match="the same dataset"):
        read(path)


def test_damaged_files_are_errors_and_nothing_else(tmp_path):
    """Bytes are changed at random: it works, or it is an error of ours, soon.

    Half of the files look like those of a writer that has died.
    """
    path = tmp_path / "a.h5"
    shutil.copy(pathlib.Path(__file__).parents[1] / "data" / "format-1.h5", path)
    code = """
        import pathlib, random, sys
        from spoolax import errors
        from spoolax.storage import HDF5StorageReader
        from spoolax.storage.hdf5._superblock import CHECKED, FLAGS, checksum
        path, seeds = pathlib.Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3]))
        whole = path.read_bytes()
        used = [i for i, byte in enumerate(whole) if byte]
        for seed in seeds:
            print(seed, flush=True)
            rng, data = random.Random(seed), bytearray(whole)
            if seed % 2:
                data[FLAGS] = 5
                data[CHECKED:48] = checksum(bytes(data[:CHECKED])).to_bytes(4, "little")
            for _ in range(rng.choice([1, 1, 3, 10, 100])):
                data[rng.choice(used)] = rng.randrange(256)
            if rng.random() < 0.2:
                data = data[: rng.randrange(len(data))]
            damaged = path.with_name("damaged.h5")
            damaged.write_bytes(data)
            try:
                with HDF5StorageReader(damaged) as reader:
                    for name in reader.groups:
                        reader.focus_group(name)[:]
                        reader.status, reader.steps_run
            except errors.StorageError:
                pass
    """
    ran = in_process(code, path, 0, 150 if ALL_CRASHES else 40)
    assert ran.returncode == 0, (ran.stdout[-20:], ran.stderr[-2000:])
