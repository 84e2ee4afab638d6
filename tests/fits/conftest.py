"""How tests of fits compile: equal programs once, and quickly where digits do not matter."""

import pytest

from spoolax.fit._program import cache


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled fits")


@pytest.fixture(autouse=True)
def equal_programs_are_compiled_once(cache_home, monkeypatch):
    """They are kept on disk, as for users, but in a directory of the tests."""
    monkeypatch.setattr(cache, "cache_dir", lambda: cache_home)
    monkeypatch.setenv(cache.DISABLE, "0")


@pytest.fixture(autouse=True)
def _compile_quickly(request):
    """Only the reference problems need the digits that users get."""
    if request.path.stem != "test_nist":
        request.getfixturevalue("unoptimized")
