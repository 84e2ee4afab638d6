"""See inside JAX programs: mark values with `log`; collect them with `spool`, stream with `tap`."""

from typing import TYPE_CHECKING

from ._lazy import lazily, starts_without_jax

if TYPE_CHECKING:
    from . import errors as errors
    from . import fit as fit
    from . import loggers as loggers
    from . import optimizers as optimizers
    from . import storage as storage
    from . import testing as testing
    from ._log.cotangents import log_grad as log_grad
    from ._log.primitive import log as log
    from ._logdict.logdict import LogDict as LogDict
    from ._logdict.origin import Origin as Origin
    from ._runs.listing import Runs as Runs
    from ._runs.listing import runs as runs
    from ._runs.recording import run as run
    from ._runs.run import Run as Run
    from ._runs.run import open_run as open  # noqa: A004, F401 (`spoolax.open(path)`)
    from ._simulate.simulate import interrupted as interrupted
    from ._simulate.simulate import key_chain as key_chain
    from ._simulate.simulate import simulate as simulate
    from ._spool.spool import spool as spool
    from ._tap.host import flush as flush
    from ._tap.listening import listening as listening
    from ._tap.tap import tap as tap
    from ._watch.nan import NanFound as NanFound
    from ._watch.primitives import Outline as Outline
    from ._watch.primitives import primitives as primitives
    from ._watch.progress import progress as progress
    from ._watch.watch import watch as watch
    from ._watch.watch import watch_nan as watch_nan
    from ._watch.watching import watching as watching
    from ._watch.watching import watching_nan as watching_nan
    from .errors import Converged as Converged
    from .errors import SpoolaxError as SpoolaxError
    from .errors import StopRun as StopRun
    from .loggers import Logger as Logger
    from .optimizers import is_jax_array as is_jax_array
    from .optimizers import log_convergence_async as log_convergence_async
    from .optimizers import log_iteration_async as log_iteration_async
    from .storage import load as load
    from .storage import save as save

__version__ = "0.1.0.dev0"
__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "Converged": ".errors",
        "errors": "",
        "fit": "",
        "flush": "._tap.host",
        "interrupted": "._simulate.simulate",
        "is_jax_array": ".optimizers",
        "key_chain": "._simulate.simulate",
        "listening": "._tap.listening",
        "load": ".storage",
        "log": "._log.primitive",
        "log_convergence_async": ".optimizers",
        "log_grad": "._log.cotangents",
        "log_iteration_async": ".optimizers",
        "LogDict": "._logdict.logdict",
        "Logger": ".loggers",
        "loggers": "",
        "NanFound": "._watch.nan",
        "open": "._runs.run:open_run",
        "optimizers": "",
        "Origin": "._logdict.origin",
        "Outline": "._watch.primitives",
        "primitives": "._watch.primitives",
        "progress": "._watch.progress",
        "Run": "._runs.run",
        "run": "._runs.recording",
        "Runs": "._runs.listing",
        "runs": "._runs.listing",
        "save": ".storage",
        "simulate": "._simulate.simulate",
        "spool": "._spool.spool",
        "SpoolaxError": ".errors",
        "StopRun": ".errors",
        "storage": "",
        "tap": "._tap.tap",
        "testing": "",
        "watch": "._watch.watch",
        "watch_nan": "._watch.watch",
        "watching": "._watch.watching",
        "watching_nan": "._watch.watching",
    },
)

if not starts_without_jax():
    from ._tap import listening as _core  # Now, rather than while something is traced.

    del _core
