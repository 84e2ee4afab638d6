"""Every backend keeps the contract of a store, whatever it is kept in."""

from record_file import RecordFileBackend

from spoolax.storage.hdf5 import HDF5Backend
from spoolax.storage.zarr import ZarrBackend
from spoolax.testing import StoreContract


class TestHDF5(StoreContract):
    def make(self):
        return HDF5Backend()


class TestCompressedHDF5(StoreContract):
    def make(self):
        return HDF5Backend(compression="gzip")


class TestRecordFile(StoreContract):
    def make(self):
        return RecordFileBackend()


class TestZarr(StoreContract):
    def make(self):
        return ZarrBackend()


class TestZarrWithoutCompression(StoreContract):
    def make(self):
        return ZarrBackend(compression=None)
