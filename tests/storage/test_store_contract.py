"""Every backend keeps the contract of a store."""

from spoolax.storage.hdf5 import HDF5Backend
from spoolax.testing import StoreContract


class TestHDF5(StoreContract):
    def make(self):
        return HDF5Backend()


class TestCompressedHDF5(StoreContract):
    def make(self):
        return HDF5Backend(compression="gzip")
