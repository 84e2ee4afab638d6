"""Programs of people who use other libraries, which `make test-ecosystem` installs.

Without those libraries, nothing is collected.
"""

import importlib.util
import pathlib

import jax
import pytest

HERE = pathlib.Path(__file__).parent
NEEDED = ("blackjax", "diffrax", "equinox", "flax", "lineax", "numpyro", "optax", "optimistix")
IS_THERE = all(importlib.util.find_spec(name) for name in NEEDED)

collect_ignore_glob = ["conftest.py"] if IS_THERE else ["*"]


def pytest_collection_modifyitems(items):
    """Ignore what the libraries say about each other and about JAX."""
    for item in items:
        if item.path.is_relative_to(HERE):
            for what in ("DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{what}"))


@pytest.fixture(autouse=True)
def _as_a_user_has_it():
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
