"""For your own tests: see what a program logs, and check that a logger keeps the contract.

    class TestMyLogger(spoolax.testing.LoggerContract):
        def make(self, directory):
            return MyLogger(directory / "log.txt")

pytest runs that as a suite of tests. Define `read` as well to compare what has arrived.
"""

from ._capture import capture as capture
from ._logger_contract import LoggerContract as LoggerContract
from ._store_contract import StoreContract as StoreContract
