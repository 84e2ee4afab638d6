"""Compile a function for an H100 or a TPU v5e on a machine that has neither, and list its loops.

It needs the CUDA plugin of JAX and libtpu (the group `accelerators`). Compile-only clients take no
host callbacks, so the places where JAX registers them are replaced here, in private parts of JAX.
What comes out is optimized HLO: it says what would run, not how fast.
"""

import collections
import os
import pathlib
import re
from typing import NamedTuple

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"  # Tests run in several processes.
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["TPU_ACCELERATOR_TYPE"] = "v5litepod-4"
os.environ["TPU_WORKER_HOSTNAMES"] = "localhost"

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.interpreters import mlir
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

jax.config.update("jax_platforms", "cpu")  # Nothing runs on the others.


class Loop(NamedTuple):
    """A loop of a compiled program."""

    trips: int | None  # How many iterations it makes, if that is known.
    kernels: collections.Counter  # What an iteration launches, by kind,
    test: collections.Counter  # and what its test launches.


# What a line of HLO may be without running anything by itself.
FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast", "while"}

_get_backend = mlir.ModuleContext.get_backend


class _NoCallbacks:
    def __init__(self, client):
        self._client = client

    def __getattr__(self, name):
        return getattr(self._client, name)

    def make_python_callback_from_host_send_and_recv(self, *args):
        return None


class _AsIfOne(list):
    """Host callbacks are taken for one that there is, and never registered."""

    def __len__(self):
        return 1


def _topology(platform, devices):
    if platform == "tpu":
        mlir.ModuleContext.get_backend = lambda self, optional=False: _NoCallbacks(
            _get_backend(self, optional)
        )
        mlir.ModuleContext.add_host_callback = lambda self, callback: None
        return topologies.get_topology_desc("v5e:2x2", "tpu")

    def add(self, callback):
        if not isinstance(self.host_callbacks, _AsIfOne):
            self.host_callbacks = _AsIfOne()

    mlir.ModuleContext.get_backend = lambda self, optional=False: None
    mlir.ModuleContext.add_host_callback = add
    config = (pathlib.Path(__file__).parent / "h100.txtpb").read_text()
    return topologies.get_topology_desc(
        "H100", "cuda", target_config=config, topology=f"1x1x{devices}"
    )


def optimized(f, *args, platform, devices=1):
    """The optimized HLO of a function for a platform, as text; its arguments are spread."""
    mesh = Mesh(np.array(_topology(platform, devices).devices[:devices]), ("d",))
    sharding = NamedSharding(mesh, PartitionSpec("d"))

    def placed(x):
        return jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x), sharding=sharding)

    traced = jax.jit(f).trace(*jax.tree.map(placed, args))
    return traced.lower(lowering_platforms=(platform,)).compile().as_text()


def loops(f, *args, platform):
    """List the loops of a function that is compiled for a platform."""
    text = optimized(f, *args, platform=platform)
    computations, current = {}, None
    for line in text.splitlines():
        head = re.match(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{", line)
        if head and not line.startswith(" "):
            current = computations[head[1]] = []
        elif line.startswith("}"):
            current = None
        elif current is not None:
            current.append(line)
    found = []
    for line in text.splitlines():
        if _operation(line) == "while":
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
            body, test = (re.search(rf"{x}=%?([\w.\-]+)", line)[1] for x in ("body", "condition"))
            found.append(
                Loop(
                    int(trips[1]) if trips else None,
                    _launched(computations, body),
                    _launched(computations, test),
                )
            )
    return found


def _operation(line):
    match = re.search(r"= (?:\(.*?\)|\S+) ([\w\-]+)\(", line)
    return match[1] if match else None


def _launched(computations, name):
    """Count what a computation runs, by kind."""
    count = collections.Counter()
    for line in computations.get(name, []):
        kind = _operation(line)
        if kind == "call":
            count += _launched(computations, re.search(r"to_apply=%?([\w.\-]+)", line)[1])
        elif kind and kind not in FREE:
            count[kind] += 1
    return count
