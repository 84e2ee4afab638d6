"""What tests of stores share: writing and reading a trajectory, and other processes.

Crashes and damaged files take long to try. By default, tests try a share of the cases; with
SPOOLAX_CRASH=1 in the environment, they try all of them.
"""

import dataclasses
import os
import subprocess
import sys
import textwrap
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import spoolax
from spoolax.storage import HDF5StorageReader, HDF5StorageWriter, WriterGroupConfig

ALL_CRASHES = bool(os.environ.get("SPOOLAX_CRASH"))


class Inner(NamedTuple):
    b: object
    a: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    x: object
    rest: object


def write(path, view, states, kind=HDF5StorageWriter, **options):
    schema = {"frames": WriterGroupConfig(view)}
    with kind(path, schema, states[0], **options) as writer:
        for i, state in enumerate(states):
            writer.log(state, i)
    return path


def read(path, **options):
    with HDF5StorageReader(path, **options) as reader:
        return reader.focus_group("frames")[:]


def in_process(code, *args):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
    )


def mixed(n):
    def body(i, _):
        spoolax.log({"x": i * 1.0, "deep": {"y": jnp.full(2, i)}}, step=i, episode=i // 2, tags="a")
        lax.cond(i % 2 == 0, lambda: spoolax.log({"even": i}) and None, lambda: None)
        return i + 1, None

    return lax.scan(body, 0, length=n)[0]
