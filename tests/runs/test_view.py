"""What the page is given: runs, curves at some resolution, and arrays, without a browser."""

import numpy as np
import pytest
from recorded import train

import spoolax
from spoolax._runs.lines import Line, mean_of
from spoolax.errors import StorageError
from spoolax.view import catalog as catalogs
from spoolax.view.catalog import Catalog
from spoolax.view.column_cache import ColumnCache
from spoolax.view.drawn import kinds_of

pytestmark = pytest.mark.once


def test_no_name_means_two_things(tmp_path):
    config = {"start": [1, 2], "rate": 0.1, "deep": {"er": None}}
    with spoolax.run("a", config, directory=tmp_path, show=False) as run:
        run.log({"rate": 0.2, "size": 3.0, "loss": 1.0}, 0)
    (one,) = Catalog([tmp_path]).listed()["runs"]
    assert one["config"] == {"config.start": "[1, 2]", "rate": 0.1, "deep.er": None}
    assert one["last"] == {"last.rate": 0.2, "last.size": 3.0, "loss": 1.0}


def test_runs_are_opened_and_closed_as_they_are_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(catalogs, "MOST_OPEN", 2)
    for _ in range(4):
        train(tmp_path, steps=2)
    catalog = Catalog([tmp_path])
    keys = [run["id"] for run in catalog.listed()["runs"]]
    for _ in range(2):
        for key in keys:
            with catalog.opened(key) as run:
                assert len(run["train/loss"]) == 2
        assert len(catalog._open) == 3  # One is opened before another is closed.
        catalog.listed()
        assert len(catalog._open) == 2
    with pytest.raises(StorageError, match="not there any more"):
        with catalog.opened("nothing"):
            pass
    assert not catalog.has_changed()
    train(tmp_path, steps=1)
    assert catalog.has_changed()
    single = Catalog([tmp_path / "missing", *list(tmp_path.glob("train-*"))[:1]])
    assert len(single.listed()["runs"]) == 1


def test_columns_are_read_once_and_then_only_what_is_new():
    asked, column = [], np.arange(100)

    def read(start, stop):
        asked.append((start, stop))
        return column[start:stop].copy()

    cache = ColumnCache(most_bytes=3000)
    for count in (10, 10, 12, 40, 30):
        assert cache.first("a", count, read).tolist() == list(range(count))
    assert asked == [(0, 10), (10, 12), (12, 40)]
    cache.first("b", 100, read)
    cache.first("c", 300, lambda start, stop: np.zeros(stop - start))
    asked.clear()
    cache.first("a", 5, read)
    assert asked == [(0, 5)]  # There was no room for it any more.


def test_the_lowest_and_highest_of_every_stretch_are_drawn():
    x, y = np.arange(100_000), np.zeros(100_000)
    y[[3, 50_001, 77_777]] = [1.0, -1.0, np.nan]
    line = Line("", x, y, y - 0.1, y + 0.1)
    thin = line.thinned(500)
    assert len(thin.x) <= 502
    assert {3, 50_001} <= set(thin.x.tolist())
    assert (thin.x[0], thin.x[-1]) == (0, 99_999)
    assert np.nanmin(thin.low) == pytest.approx(-1.1)
    assert np.nanmax(thin.high) == pytest.approx(1.1)
    window = line.within(10.5, 20)
    assert window.x.tolist() == list(range(10, 22))
    assert line.within(None, None).x is not None
    assert len(Line("", x, np.full(100_000, np.nan)).thinned(100).x) <= 102


def test_means_of_curves_with_other_steps():
    one = Line("", np.asarray([0, 10, 20]), np.asarray([0.0, 1.0, 2.0]))
    same = mean_of([one, Line("", one.x, one.y + 2)])
    assert same.y.tolist() == [1, 2, 3]
    assert same.low.tolist() == [0, 1, 2]
    other = Line("", np.asarray([5, 15, 40]), np.asarray([10.0, 10.0, 10.0]))
    mean = mean_of([one, other])
    assert mean.x.tolist() == [0, 5, 10, 15, 20, 40]
    assert mean.y.tolist() == [0, 5.25, 5.5, 5.75, 6, 10]
    assert mean_of([one]) is one
    empty = Line("", np.zeros(0), np.zeros(0))
    assert mean_of([one, empty]).y.tolist() == [0, 1, 2]


def test_arrays_are_drawn_by_their_shapes(tmp_path):
    shapes = {
        "number": (),
        "vector": (5,),
        "field": (8, 9),
        "image": (8, 8, 3),
        "thin": (2, 3),
        "deep": (2, 3, 4, 5),
        "none": (0,),
    }
    with spoolax.storage.SaveLogger(tmp_path / "a.h5") as logger:
        logger.log({name: np.ones(shape) for name, shape in shapes.items()}, 0)
    with spoolax.open(tmp_path / "a.h5") as run:
        kinds = {name: kinds_of(run[name]) for name in shapes}
    assert kinds == {
        "number": ["lines"],
        "vector": ["heat", "lines", "histogram"],
        "field": ["frames", "lines", "histogram"],
        "image": ["frames", "lines", "histogram"],
        "thin": ["lines", "histogram"],
        "deep": ["lines", "histogram"],
        "none": [],
    }
