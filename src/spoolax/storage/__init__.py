"""Runs on disk: stores that survive a crash, can be read while they are written, and run no code.

`HDF5StorageWriter`, `ZarrStorageWriter` and `SaveLogger` are loggers that write a store, with a
schema and without; `HDF5StorageReader`, `ZarrStorageReader` and `load` read it. `_store` says what
a store is, each backend is a folder that implements it, and `_formats` chooses one for a path. Only
`testing` and lazy names of `spoolax` and `loggers` import this package.
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from ..loggers import EveryNStep as EveryNStep
    from ..loggers import EverySeconds as EverySeconds
    from ..loggers import LogSpaced as LogSpaced
    from ..loggers import Once as Once
    from ..loggers import Steps as Steps
    from ._backends import HDF5StorageReader as HDF5StorageReader
    from ._backends import HDF5StorageWriter as HDF5StorageWriter
    from ._backends import ZarrStorageReader as ZarrStorageReader
    from ._backends import ZarrStorageWriter as ZarrStorageWriter
    from ._group import GroupReader as GroupReader
    from ._logs import load as load
    from ._logs import save as save
    from ._save import SaveLogger as SaveLogger
    from ._schema import WriterGroupConfig as WriterGroupConfig
    from ._store.trees import Namespace as Namespace

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "EveryNStep": "..loggers",
        "EverySeconds": "..loggers",
        "GroupReader": "._group",
        "HDF5StorageReader": "._backends",
        "HDF5StorageWriter": "._backends",
        "LogSpaced": "..loggers",
        "Namespace": "._store.trees",
        "Once": "..loggers",
        "SaveLogger": "._save",
        "Steps": "..loggers",
        "WriterGroupConfig": "._schema",
        "ZarrStorageReader": "._backends",
        "ZarrStorageWriter": "._backends",
        "load": "._logs",
        "save": "._logs",
    },
)
