"""Run all benchmarks and print their figures."""

import platform

import jax

from . import fit, loggers, spool, storage, tap, trackers, watch

if __name__ == "__main__":
    print(
        f"JAX {jax.__version__} on {jax.devices()[0].platform}, python {platform.python_version()}"
    )
    spool.main()
    tap.main()
    watch.main()
    loggers.main()
    storage.main()
    fit.main()
    trackers.main()
