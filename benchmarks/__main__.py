"""Run benchmarks, all or those that are named, and print their figures."""

import importlib
import platform
import sys

import jax

PARTS = (
    "spool",
    "tap",
    "listening",
    "solves",
    "watch",
    "loggers",
    "storage",
    "zarr_stores",
    "processes",
    "runs",
    "view",
    "fit",
    "trackers",
)

if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(PARTS)
    if unknown:
        sys.exit(f"There are no benchmarks of {', '.join(unknown)}, but of {', '.join(PARTS)}.")
    print(
        f"JAX {jax.__version__} on {jax.devices()[0].platform}, python {platform.python_version()}"
    )
    for name in sys.argv[1:] or PARTS:
        importlib.import_module(f"{__package__}.{name}").main()
