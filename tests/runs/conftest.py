"""A directory with runs of all kinds, which tests only look at."""

import numpy as np
import pytest
from recorded import seeds, train

import spoolax
from spoolax.loggers import JsonlLogger
from spoolax.storage import SaveLogger


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    top = tmp_path_factory.mktemp("work") / "runs"
    train(top)
    train(top, rate=0.2, name="other")
    seeds(top)
    with SaveLogger(top / "saved.h5") as logger:
        for i in range(30):
            logger.log({"loss": 1 / (1 + i), "deep": {"w": np.full(2, i)}}, 10 * i)
            if i % 10 == 0:
                logger.log({"accuracy": i, "loss": 5.0}, 10 * i)
    with JsonlLogger(top / "lines.jsonl") as logger:
        for i in range(4):
            logger.log({"loss": i / 2, "pair": np.arange(2) * i}, i)
    logs = spoolax.LogDict(
        {"x": np.arange(3.0)}, steps={"step": {"x": np.arange(3)}}, stacked=["x"]
    )
    spoolax.save(top / "whole.h5", logs)
    return top
