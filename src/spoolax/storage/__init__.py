"""Trajectories in HDF5 files that survive a crash, can be read while they are written, and run no
code.

`HDF5StorageWriter` is a logger that writes what a schema says; `HDF5StorageReader` reads it.
"""

from ..loggers import EveryNStep as EveryNStep
from ..loggers import EverySeconds as EverySeconds
from ..loggers import LogSpaced as LogSpaced
from ..loggers import Once as Once
from ..loggers import Steps as Steps
from ._group import GroupReader as GroupReader
from ._logs import load as load
from ._logs import save as save
from ._reader import HDF5StorageReader as HDF5StorageReader
from ._save import SaveLogger as SaveLogger
from ._schema import WriterGroupConfig as WriterGroupConfig
from ._tree import Namespace as Namespace
from ._writer import HDF5StorageWriter as HDF5StorageWriter
