"""Rows that cannot be written to their file, as the disk is full."""

import time

import pytest
from fake_tracker import ToSite

import spoolax
from spoolax.errors import (
    LogFileError,
)
from spoolax.loggers.trackers._delivery.timing import Timing
from spoolax.loggers.trackers._delivery.unsent_file import UnsentFile

pytestmark = pytest.mark.once


def test_rows_that_could_not_be_written_do_not_wait_for_others(make, site, monkeypatch):
    append, is_full = UnsentFile.append, [True]

    def shaky(*args):
        if is_full:
            raise OSError("no space left")
        append(*args)

    monkeypatch.setattr(UnsentFile, "append", shaky)
    monkeypatch.setattr(ToSite, "_timing", Timing(disk_pause=0.01, tick=0.01))
    with make() as logger:
        logger.log({"x": 0}, 0)
        spoolax.flush()
        assert not logger.flush(0.1)
        is_full.clear()
        end = time.monotonic() + 20
        while "one" not in site.runs or not site.runs["one"].rows:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert logger.flush()


def test_a_disk_that_is_full_is_not_tried_for_every_row(make, site, monkeypatch):
    attempts = []

    def full(*args):
        attempts.append(args)
        raise OSError("no space left")

    monkeypatch.setattr(ToSite, "_timing", Timing(disk_pause=1000.0))
    with make() as logger:
        with monkeypatch.context() as patch:
            patch.setattr(UnsentFile, "append", full)
            for i in range(500):
                logger.log({"x": i}, i)
            spoolax.flush()
    assert len(attempts) == 1
    assert site.runs["one"].numbers() == list(range(500))


def test_rows_that_cannot_be_written_are_kept_for_a_while(make, site, tmp_path, caplog):
    place = tmp_path / "place"
    with make(spill=place) as logger:
        place.rmdir()
        place.write_text("in the way")
        for i in range(5):
            logger.log({"x": i}, i)
        spoolax.flush()
        assert not site.runs
        place.unlink()
        logger.log({"x": 5}, 5)
    assert site.runs["one"].numbers() == list(range(6))
    assert ["cannot write" in record.message for record in caplog.records] == [True]
    assert list(place.iterdir()) == []  # It is the user's.


def test_rows_that_can_never_be_written_are_an_error(make, site, tmp_path):
    place = tmp_path / "place"
    with pytest.raises(LogFileError, match=r"could not write 5 rows.*`spill=`"):
        with make(spill=place) as logger:
            place.rmdir()
            place.write_text("in the way")
            for i in range(5):
                logger.log({"x": i}, i)
    assert site.runs["one"].ended == "well"
