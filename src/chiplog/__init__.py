"""See inside JAX programs: mark values with `log`; collect them with `spool`, stream with `tap`."""

from . import errors as errors
from ._host import flush as flush
from ._log import log as log
from ._log_grad import log_grad as log_grad
from ._logdict import LogDict as LogDict
from ._logdict import Origin as Origin
from ._nan import NanFound as NanFound
from ._spool import spool as spool
from ._tap import tap as tap
from ._watch import primitives as primitives
from ._watch import watch as watch
from ._watch import watch_nan as watch_nan
from .errors import ChiplogError as ChiplogError
from .errors import StopRun as StopRun

__version__ = "0.1.0.dev0"
