"""For tests and pages that need the trackers, which `make test-trackers` installs.

Without the trackers, nothing is collected.
"""

import importlib.util
import os
import pathlib
import tempfile

import jax
import pytest

HERE = [pathlib.Path(__file__).parents[1] / place for place in ("docs/trackers", "tests/trackers")]
NEEDED = ("mlflow", "tensorboardX", "trackio", "wandb")
IS_THERE = all(importlib.util.find_spec(name) for name in NEEDED)

collect_ignore_glob = ["conftest.py"] if IS_THERE else ["*"]

# Tests ignore what the user has set.
for _name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
    os.environ.pop(_name, None)
os.environ["WANDB_SILENT"] = "true"
os.environ["TRACKIO_DIR"] = tempfile.mkdtemp()  # Trackio has one directory per process.


def pytest_collection_modifyitems(items):
    """Ignore warnings of the trackers and of what they import, which come from several threads."""
    for item in items:
        if any(item.path.is_relative_to(place) for place in HERE):
            for what in ("DeprecationWarning", "FutureWarning", "ResourceWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{what}"))


@pytest.fixture(autouse=True)
def _as_a_user_has_it(tmp_path, monkeypatch):
    """Run each test in a directory of its own, with JAX's own settings."""
    monkeypatch.chdir(tmp_path)
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
