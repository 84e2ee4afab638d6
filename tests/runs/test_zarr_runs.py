"""Zarr hierarchies as runs: in lists, for commands and on the page, as files are."""

import json
import os
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

import spoolax
from spoolax.cli.commands import app
from spoolax.storage import SaveLogger
from spoolax.view.catalog import Catalog

pytestmark = pytest.mark.once
pytest.importorskip("tensorstore")


def call(*arguments, code=0):
    ran = CliRunner().invoke(app, [str(one) for one in arguments], prog_name="spoolax")
    assert ran.exit_code == code, ran.output
    return ran.stdout


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with one run in `runs`."""
    monkeypatch.chdir(tmp_path)
    with SaveLogger("runs/a.zarr", config={"rate": 0.1}) as logger:
        for i in range(5):
            logger.log({"loss": 1 / (1 + i), "w": np.arange(3.0)}, 10 * i)
    return tmp_path


def test_commands(here):
    (found,) = json.loads(call("ls", "--json"))
    assert (found["name"], found["status"], found["step"]) == ("a.zarr", "finished", 40)
    assert found["last"] == {"loss": 0.2}
    assert found["size"] == sum(f.stat().st_size for f in here.rglob("*") if f.is_file()) - (
        os.stat("runs/.spoolax-index.json").st_size
    )
    for name in ("runs/a.zarr", "a.zarr", "a", "last"):
        assert "rate" in call("show", name)
    assert "loss" in call("tail", "a", "--no-follow")
    call("plot", "a", "loss")
    call("export", "a", "-o", "out.csv")
    assert len((here / "out.csv").read_text().splitlines()) == 6
    assert "5 rows of loss, w" in call("check", "a")
    assert "nothing to repair" in call("repair", "a")


def test_check_and_repair_after_a_crash(here):
    with SaveLogger("runs/b.zarr") as logger:
        logger.log({"loss": 0.5}, 0)
        logger.commit()
        shutil.copytree("runs/b.zarr", "runs/crashed.zarr")  # What a kill would leave.
    assert "Its writer died" in call("check", "crashed")
    assert "1 rows" in call("repair", "crashed")
    with spoolax.open("runs/crashed.zarr") as run:
        assert (run.status, run["loss"][:].tolist()) == ("crashed", [0.5])
    assert "nothing to repair" in call("repair", "crashed")


def test_the_index_notices_that_a_run_goes_on(here):
    assert spoolax.runs()["a.zarr"].step == 40
    with SaveLogger("runs/a.zarr", resume=True) as logger:
        logger.log({"loss": 0.1, "w": np.arange(3.0)}, 50)
    assert spoolax.runs()["a.zarr"].last == {"loss": 0.1}


def test_the_page_lists_it_and_sees_it_grow(here):
    catalog = Catalog([here / "runs"])
    (finished,) = catalog.listed()["runs"]
    with catalog.opened(finished["id"]) as run:
        assert run["loss"][-1] == 0.2
    with SaveLogger("runs/b.zarr") as logger:
        assert catalog.has_changed()
        catalog.listed()
        before = catalog.signatures(False)
        logger.log({"loss": 1.0}, 0)
        logger.commit()
        (after,) = catalog.signatures(False).values()
        assert after not in before.values()
        assert after[1], "somebody writes it"


def test_it_is_a_part_of_the_run_in_whose_directory_it_is(here):
    with spoolax.run("train", show=False) as run:
        run.log({"loss": 1.0}, 0)
        with SaveLogger(run.path / "more.zarr") as logger:
            logger.log({"x": 2.0}, 0)
    with spoolax.open(run.path) as opened:
        assert sorted(opened) == ["loss", "more/x"]
