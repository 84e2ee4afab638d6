"""What programs become on accelerators, by compilers that `make test-accelerators` installs.

Without those, nothing is collected.
"""

import importlib.util
import pathlib

import jax
import pytest

HERE = pathlib.Path(__file__).parent
IS_THERE = all(importlib.util.find_spec(name) for name in ("jax_cuda12_plugin", "libtpu"))

collect_ignore_glob = ["conftest.py"] if IS_THERE else ["*"]


def pytest_collection_modifyitems(items):
    """Ignore what compilers say that find no devices."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(autouse=True)
def _as_a_user_has_it():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
