"""`spoolax doctor`: what is installed here, and whether it works."""

from __future__ import annotations

import importlib.util
import platform
import sys
import time
from importlib import metadata

from .. import __version__
from .._extras import package_of, requirements
from ._common import as_json_option, click, guarded, print_json

EXTRAS = (
    *("cli", "console", "hdf5", "pandas", "plot", "polars", "progress", "xarray", "zstd"),
    *("mlflow", "tensorboard", "trackio", "wandb"),
)
CALLS = 20


@click.command()
@as_json_option
@guarded
def doctor(as_json: bool) -> None:
    """Say what is installed, which devices there are, and how long a call of the host takes."""
    found = {
        "spoolax": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform(),
        **_jax(),
        **_hdf5(),
        **{f"extra {name}": _extra(name) for name in EXTRAS},
    }
    if as_json:
        print_json(found)
        return
    widest = max(map(len, found))
    for name, text in found.items():
        print(f"{name:{widest}}  {text}")


def _jax() -> dict[str, str]:
    import jax

    from ..fit import cache_dir

    devices = ", ".join(str(device) for device in jax.devices())
    return {
        "jax": f"{jax.__version__}, jaxlib {metadata.version('jaxlib')}",
        "devices": f"{devices} ({jax.default_backend()})",
        "compiled fits": str(cache_dir()),
        "a streamed step": f"{1e6 * _time_of_a_step():.0f} microseconds with a host call",
    }


def _time_of_a_step() -> float:
    """The time that a compiled function takes which logs one number in a block that listens."""
    import jax

    import spoolax

    @jax.jit
    def step(x: float) -> float:
        spoolax.log({"x": x})
        return x + 1.0

    with spoolax.listening(lambda logs: None):
        x = step(0.0)
        jax.block_until_ready(x)
        begin = time.perf_counter()
        for _ in range(CALLS):
            x = step(x)
        jax.block_until_ready(x)
        return (time.perf_counter() - begin) / CALLS


def _hdf5() -> dict[str, str]:
    if importlib.util.find_spec("h5py") is None:
        return {"hdf5": "missing: needed to store runs"}
    import h5py  # type: ignore[import-not-found, unused-ignore]

    return {"hdf5": f"{h5py.version.hdf5_version}, h5py {h5py.__version__}"}


def _extra(name: str) -> str:
    """What an extra consists of, and what of it is missing."""
    words = []
    for one in requirements(name):
        package = package_of(one)
        try:
            words.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            words.append(f"{package} is missing")
    return ", ".join(words)
