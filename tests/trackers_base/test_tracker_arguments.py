"""What the loggers of trackers are made with: the configuration, options, and errors."""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import spoolax
from spoolax import loggers
from spoolax.errors import (
    LogTypeError,
    LogValueError,
)
from spoolax.loggers.trackers._config import flat_config, plain_config

pytestmark = pytest.mark.once


def test_a_configuration_becomes_plain():
    @dataclasses.dataclass
    class Optimizer:
        lr: float = 1e-3
        betas: tuple = (0.9, 0.999)

    config = {
        "optimizer": Optimizer(),
        "size": np.int64(3),
        "scale": jnp.bfloat16(0.5),
        "long": np.longdouble(0.25),
        "key": jax.random.key(1),
        "activation": jax.nn.relu,
        "big": np.zeros((50, 50)),
        "nothing": None,
    }
    plain = plain_config(config)
    assert plain["optimizer"] == {"lr": 1e-3, "betas": [0.9, 0.999]}
    assert (plain["size"], plain["scale"], plain["key"]) == (3, 0.5, [0, 1])
    assert plain["long"] == 0.25
    assert plain["activation"] == "relu"
    assert plain["big"] == "float64[50,50]"
    json.dumps(plain)
    assert flat_config(plain)["optimizer.lr"] == 1e-3
    with pytest.raises(LogTypeError, match="must be a dictionary or a dataclass, not 3"):
        plain_config(3)


def test_long_names_and_odd_ones_are_fine(make, site):
    with make(name="学" * 90, project="a/b\n" * 90) as logger:
        logger.log({"x": 1}, 0)
    assert site.runs["学" * 90].numbers() == [1]


def test_api_keys_are_not_shown(make):
    logger = make(run_id="mine", api_key="secret")
    assert repr(logger) == "<ToSite(name='one', project='spoolax', run_id='mine'), new>"


def test_resuming_needs_a_run_to_resume(make):
    with pytest.raises(LogValueError, match="which run to resume"):
        make(name=None, resume=True)
    assert make(resume=True).run_id == "one"
    assert make(resume=True, run_id="two").run_id == "two"


def test_wrong_arguments_are_refused_with_a_hint(make):
    with pytest.raises(LogTypeError, match=r"no option `projct`.*Did you mean `project`"):
        make(projct="x").__enter__()
    with pytest.raises(LogTypeError, match=r"no option `log_dir`.*Did you mean `directory`"):
        make(log_dir="x").__enter__()
    with pytest.raises(LogTypeError, match="`tags` must be strings"):
        make(tags=5)
    with pytest.raises(LogValueError, match="mean the same"):
        make(project="a", experiment="b")
    with pytest.raises(LogValueError, match="has no `mode='remote'`"):
        make(mode="remote")
    with pytest.raises(LogValueError, match="`resume='maybe'`"):
        make(resume="maybe")
    with pytest.raises(LogTypeError, match="`name` must be a string, not 3"):
        make(name=3)
    with pytest.raises(LogValueError, match="`histograms`"):
        make(histograms=-1)
    with pytest.raises(LogValueError, match="`patience` must be a number of seconds"):
        make(patience="long")
    config = {}
    config["itself"] = config
    with pytest.raises(LogTypeError, match="contains itself"):
        make(config=config)
    with make() as logger, pytest.raises(LogTypeError, match="The step is NaN"):
        logger.log({"x": 1}, np.nan)


@pytest.mark.parametrize("kind", ["Wandb", "TensorBoard", "Mlflow", "Trackio"])
def test_a_tracker_that_is_not_installed_is_named_before_the_run(kind, monkeypatch):
    module = {"TensorBoard": "tensorboardX"}.get(kind, kind.lower())
    monkeypatch.setitem(sys.modules, module, None)
    told = rf'{kind}Logger needs {module}, .*`pip install .*"{module.lower()}>='
    with pytest.raises(spoolax.errors.MissingExtraError, match=told):
        getattr(loggers, f"{kind}Logger")().__enter__()
