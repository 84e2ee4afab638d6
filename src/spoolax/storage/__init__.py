"""Runs on disk: stores that survive a crash, can be read while they are written, and run no code.

`HDF5StorageWriter` and `SaveLogger` are loggers that write a store, with a schema and without;
`HDF5StorageReader` and `load` read it. `_store` says what a store is, each backend is a folder that
implements it, and `_backends` chooses one. Only `testing` and lazy names of `spoolax` and `loggers`
import this package.
"""

from ..loggers import EveryNStep as EveryNStep
from ..loggers import EverySeconds as EverySeconds
from ..loggers import LogSpaced as LogSpaced
from ..loggers import Once as Once
from ..loggers import Steps as Steps
from ._backends import HDF5StorageReader as HDF5StorageReader
from ._backends import HDF5StorageWriter as HDF5StorageWriter
from ._group import GroupReader as GroupReader
from ._logs import load as load
from ._logs import save as save
from ._save import SaveLogger as SaveLogger
from ._schema import WriterGroupConfig as WriterGroupConfig
from ._store.trees import Namespace as Namespace
