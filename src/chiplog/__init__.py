"""Log from inside JAX programs: mark values with `log`, collect them with `spool`."""

from . import errors as errors
from ._log import log as log
from ._logdict import LogDict as LogDict
from ._spool import spool as spool
from .errors import ChiplogError as ChiplogError

__version__ = "0.1.0.dev0"
