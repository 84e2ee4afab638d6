"""Stores in HDF5 files, which survive a crash and can be read while they are written.

`storage` gets its backend from here, and imports nothing else. `docs/format.md` describes the file.
"""

from ._backend import HDF5Backend as HDF5Backend
