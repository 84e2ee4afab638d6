"""See inside JAX programs: mark values with `log`; collect them with `spool`, stream with `tap`."""

from . import errors as errors
from . import fit as fit
from . import loggers as loggers
from . import storage as storage
from ._host import flush as flush
from ._log import log as log
from ._log_grad import log_grad as log_grad
from ._logdict import LogDict as LogDict
from ._logdict import Origin as Origin
from ._nan import NanFound as NanFound
from ._simulate import key_chain as key_chain
from ._simulate import simulate as simulate
from ._spool import spool as spool
from ._tap import tap as tap
from ._watch import primitives as primitives
from ._watch import watch as watch
from ._watch import watch_nan as watch_nan
from .errors import ChiplogError as ChiplogError
from .errors import StopRun as StopRun
from .loggers import Logger as Logger
from .loggers import is_jax_array as is_jax_array
from .loggers import log_convergence_async as log_convergence_async
from .loggers import log_iteration_async as log_iteration_async
from .loggers import progress as progress
from .storage import load as load
from .storage import save as save
from .storage._reader import open_ as open  # noqa: A004, F401 (`chiplog.open(path)`)

__version__ = "0.1.0.dev0"
