"""The file that rows wait in, whatever happens to it."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spoolax.errors import (
    LogFileError,
)
from spoolax.loggers.trackers._delivery.unsent_file import UnsentFile

pytestmark = pytest.mark.once


def test_a_file_of_rows_survives_being_cut(tmp_path):
    path = tmp_path / "rows.jsonl"
    unsent = UnsentFile(path, {"name": "é"})
    unsent.append("".join(f'{{"_step": {i}}}\n' for i in range(10)), 10)
    lines = unsent.read(4)
    assert [json.loads(line)["_step"] for line in lines] == [0, 1, 2, 3]
    unsent.mark_sent(lines)
    # What a killed process leaves behind: half a line, and no more.
    data = path.read_bytes() + b'{"_st'
    with pytest.raises(LogFileError, match="in use"):
        UnsentFile(path)
    other = tmp_path / "other.jsonl"
    other.write_bytes(data)
    again = UnsentFile(other)
    assert (again.run, again.waiting) == ({"name": "é"}, 6)
    again.append('{"_step": 10}\n')
    lines = again.read(100)
    assert [json.loads(line)["_step"] for line in lines] == [4, 5, 6, 7, 8, 9, 10]
    again.mark_sent(lines)
    again.close()
    assert not other.exists()
    unsent.close()
    assert path.exists()


def test_a_file_in_which_nothing_waits_does_not_grow(tmp_path):
    unsent = UnsentFile(tmp_path / "rows.jsonl", {})
    for i in range(30):
        unsent.append(f'{{"_step": {i}, "text": "{"x" * 100_000}"}}\n')
        lines = unsent.read(10)
        assert [json.loads(line)["_step"] for line in lines] == [i]
        unsent.mark_sent(lines)
    assert unsent.path.stat().st_size < 2 << 20
    assert unsent.waiting == 0
    unsent.close()


def test_what_a_tracker_may_still_have_in_memory_is_not_counted_as_sent(tmp_path):
    now = [0.0]
    unsent = UnsentFile(tmp_path / "rows.jsonl", {}, lag=5.0, clock=lambda: now[0])

    def after_a_crash():
        copy = tmp_path / "copy.jsonl"
        copy.write_bytes(unsent.path.read_bytes())
        again = UnsentFile(copy)
        steps = [json.loads(line)["_step"] for line in again.read(10**6)]
        again.close()
        copy.unlink(missing_ok=True)
        return steps

    for i in range(4):
        now[0] = 2.0 * i
        unsent.append(f'{{"_step": {i}}}\n')
        unsent.mark_sent(unsent.read(10))
    assert after_a_crash() == [1, 2, 3]
    # When the file is made smaller, it does not grow, and nothing is lost.
    for i in range(4, 50):
        now[0] = 2.0 * i
        unsent.append(f'{{"_step": {i}, "text": "{"x" * 200_000}"}}\n')
        unsent.mark_sent(unsent.read(10))
        assert after_a_crash() == [i - 2, i - 1, i]
    assert unsent.path.stat().st_size < 3 << 20
    unsent.close()
    assert not unsent.path.exists()


@given(
    st.lists(st.tuples(st.sampled_from(["append", "send", "wait"]), st.integers(1, 8)), max_size=60)
)
def test_whatever_happens_to_a_file_nothing_is_lost_or_repeated(actions):
    """A model: rows that were appended, those sent and when, and those that are safe."""
    now, appended, handed = 0.0, 0, []
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr("spoolax.loggers.trackers._delivery.unsent_file.LARGE", 300)
        patch.setattr("spoolax.loggers.trackers._delivery.unsent_file.CHUNK", 50)
        path, copy = Path(place, "rows.jsonl"), Path(place, "copy.jsonl")
        unsent = UnsentFile(path, {}, lag=5.0, clock=lambda: now)
        for action, count in actions:
            if action == "append":
                rows = range(appended, appended + count)
                unsent.append("".join(f'{{"_step": {i}}}\n' for i in rows), count)
                appended += count
            elif action == "send":
                lines = unsent.read(count)
                steps = [json.loads(line)["_step"] for line in lines]
                assert steps == list(range(len(handed), min(len(handed) + count, appended)))
                handed += [now] * len(lines)
                if lines:
                    unsent.mark_sent(lines)
            else:
                now += count
                assert unsent.confirm_sent() == any(at > now - 5 for at in handed)
            assert unsent.waiting == appended - len(handed)
            copy.write_bytes(path.read_bytes())  # What is left if the process is killed here.
            again = UnsentFile(copy)
            left = [json.loads(line)["_step"] for line in again.read(10**6)]
            again.close()
            first = left[0] if left else appended
            assert left == list(range(first, appended))
            assert first <= len(handed)
            assert all(at <= now - 5 for at in handed[:first])
            assert action != "wait" or first == sum(at <= now - 5 for at in handed)
        unsent.close()
        assert path.exists() == (appended > len(handed))


def test_a_file_that_was_removed_is_there_again(tmp_path):
    unsent = UnsentFile(tmp_path / "place" / "rows.jsonl", {"name": "one"})
    unsent.append('{"_step": 0}\n{"_step": 1}\n', 2)
    unsent.mark_sent(unsent.read(1))
    unsent.path.unlink()
    unsent.path.parent.rmdir()
    unsent.close()
    again = UnsentFile(unsent.path)
    assert (again.run, again.read(10)) == ({"name": "one"}, ['{"_step": 1}\n'])
    again.close()


def test_a_file_that_cannot_be_created_leaves_nothing(tmp_path, monkeypatch):
    def full(*args):
        raise OSError("no space left")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no space left"):
        patch.setattr("os.pwrite", full)
        UnsentFile(tmp_path / "rows.jsonl", {})
    UnsentFile(tmp_path / "rows.jsonl", {}).close()


def test_a_position_that_cannot_be_written_is_written_later(tmp_path, monkeypatch):
    unsent = UnsentFile(tmp_path / "rows.jsonl", {})
    unsent.append("".join(f'{{"_step": {i}}}\n' for i in range(4)), 4)
    full = lambda *args: (_ for _ in ()).throw(OSError("no space left"))  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        unsent.mark_sent(unsent.read(2))
    assert [json.loads(line)["_step"] for line in unsent.read(1)] == [2]
    unsent.mark_sent(unsent.read(1))
    assert unsent.waiting == 1
    unsent.close()
    again = UnsentFile(unsent.path)
    assert [json.loads(line)["_step"] for line in again.read(9)] == [3]
    again.close()


def test_a_file_is_replaced_by_a_shorter_one_atomically(tmp_path, monkeypatch):
    """Whichever write or rename is the last one before a crash, no row is missing."""
    monkeypatch.setattr("spoolax.loggers.trackers._delivery.unsent_file.LARGE", 50)
    now, states = [0.0], []
    unsent = UnsentFile(tmp_path / "rows.jsonl", {}, lag=5.0, clock=lambda: now[0])
    for name in ("pwrite", "replace", "ftruncate"):
        act = getattr(os, name)

        def watched(*args, act=act):
            found = act(*args)
            states.append(unsent.path.read_bytes())
            return found

        monkeypatch.setattr(f"os.{name}", watched)
    for i in range(30):
        now[0] = 2.0 * i
        unsent.append(f'{{"_step": {i}}}\n')
        states.clear()
        unsent.mark_sent(unsent.read(1))
        for state in tuple(states):
            copy = tmp_path / "copy.jsonl"
            copy.write_bytes(state)
            again = UnsentFile(copy)
            steps = [json.loads(line)["_step"] for line in again.read(100)]
            assert steps == list(range(steps[0], i + 1))
            assert steps[0] <= max(i - 2, 0)
            again.close()
    assert unsent.path.stat().st_size < 1000
    unsent.close()


def test_large_rows_are_not_all_read_at_once(tmp_path):
    unsent = UnsentFile(tmp_path / "rows.jsonl", {})
    for i in range(30):
        unsent.append(f'{{"_step": {i}, "text": "{"x" * 1_000_000}"}}\n')
    assert 3 <= len(unsent.read(1000)) <= 6
    unsent.close()


def test_rows_longer_than_a_read_come_whole(tmp_path):
    unsent = UnsentFile(tmp_path / "rows.jsonl", {})
    unsent.append('{"_step": 0, "text": "' + "x" * 1_000_000 + '"}\n{"_step": 1}\n', 2)
    assert len(unsent.read(1)[0]) > 1_000_000
    assert len(unsent.read(5)) == 2
    unsent.close()


def test_a_file_that_another_process_has_just_sent_is_not_created_again(make, site, tmp_path):
    with pytest.raises(FileNotFoundError):
        UnsentFile(tmp_path / "gone.jsonl")
    assert not (tmp_path / "gone.jsonl").exists()
