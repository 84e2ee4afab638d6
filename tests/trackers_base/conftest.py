"""Loggers of a tracker in memory: what all trackers share, without any of them installed."""

import pytest
from fake_tracker import Site, ToSite

collect_ignore = ["conftest.py"]  # It has no doctests, and there are others of that name.


@pytest.fixture
def site():
    return Site()


@pytest.fixture
def make(site, tmp_path):
    def make(**arguments):
        return ToSite(**{"name": "one", "directory": tmp_path, "site": site, **arguments})

    return make
