"""The real trackers, which `make test-trackers` installs; without them, there is nothing here."""

import importlib.util
import os

if any(importlib.util.find_spec(name) is None for name in ("mlflow", "trackio", "wandb")):
    collect_ignore_glob = ["test_*.py"]

os.environ["WANDB_SILENT"] = "true"
for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
    os.environ.pop(name, None)  # What the user has set is not for tests.


def pytest_collection_modifyitems(items):
    # Trackers and what they import warn of this and that, from several threads.
    import pytest

    for item in items:
        for what in ("DeprecationWarning", "FutureWarning", "ResourceWarning", "ImportWarning"):
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{what}"))
