"""Programs over several processes of `jax.distributed`: what each of them gets."""

import re
import signal

import numpy as np
import pytest
from launch import ended, run, start

import spoolax
from spoolax.loggers import read_jsonl


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_long_while_loop_is_spooled_whole_on_every_process(count):
    length = 1100  # More than are kept on the devices.
    for i, sums, again, total in run("spooled", count, length, devices=4 // count):
        assert i == list(range(length))
        assert sums == [28.0 + 8 * (n + 1) for n in range(length)]
        assert again == [0, 1, 2]
        assert total == 28 + 8 * length


def test_spooled_entries_stay_on_their_devices():
    length = 1100
    for number, (shape, parts, *keys) in enumerate(run("spooled_parts", 2, length)):
        assert shape == [length, 8]
        mine = [4 * number, 4 * number + 2]
        assert parts == [[start, [start + 1100.0, start + 1101.0]] for start in mine]
        assert keys == [True, False], "equal, and spread over the processes"


@pytest.mark.parametrize("count", [2, 4])
def test_entries_arrive_in_order_on_the_first_process_call_after_call(count):
    lengths = 100, 1500, 100
    first, *others = run("tapped", count, *lengths, devices=4 // count)
    assert [seen for seen, _ in first] == [list(range(length)) for length in lengths]
    calls = [calls for _, calls in first]
    assert calls[0] == calls[2] == 0, "They are over before anybody could see that."
    assert calls[1] > 0
    assert others == [[[[], 0]] * len(lengths)] * (count - 1)


def test_entries_that_are_spread_over_processes_arrive_whole_on_the_first():
    (first, mine), (others, theirs) = run("tapped_parts", 2, 5)
    rows = [
        [name, *(n + i for n in range(8))]
        for name, i in [*(("x", i) for i in range(5)), ("end", 5)]
    ]
    assert first == rows * 2
    assert others == []
    assert mine == theirs == 12, "of programs of their own"


@pytest.mark.parametrize("jit", [False, True])
def test_loops_of_a_shard_map_are_live(jit):
    """They are heard as if there were one process, and one of each are heard by themselves."""
    (alone,) = run("tapped_shards", 1, jit, devices=4)
    first, second = run("tapped_shards", 2, jit)
    for name in ("scan", "while_loop", "nested"):
        (seen, _, result), (entries, calls, mine) = alone[name], first[name]
        assert entries == seen
        assert calls == (name != "nested"), "what not all devices log is heard at the end"
        assert second[name] == [[], False, mine]
        assert mine == result
        assert first[f"mine of {name}"] == second[f"mine of {name}"] > 3
    for found in (first, second):
        assert found["refused"].startswith("UnsupportedError: Cannot log ['x'] from a `jax.lax.w")


def test_the_first_process_hears_wherever_its_devices_are_in_a_mesh():
    first, second = run("on_another_first", 2)
    assert first == [True] * 6
    assert second == [0] * 6


def test_what_happened_on_some_devices_is_known_to_all_processes():
    (alone,) = run("spooled_masks", 1, devices=4)
    assert alone[0] == [[i % 2 == 1 for i in (j, j + 1, j + 2, j + 3)] for j in range(4)]
    assert run("spooled_masks", 2) == [alone] * 2


def test_a_stop_reaches_shard_maps_on_all_processes():
    first, second = run("stopped_shards", 2)
    assert first == "StopRun: enough"
    assert second == "StopRun: Another process stopped this program."


@pytest.mark.parametrize("count", [1, 2])
def test_loggers_of_a_python_loop(count, tmp_path):
    first, *others = run("logged", count, str(tmp_path))
    steps, sums = list(range(5)), [28.0 + 8 * i for i in range(5)]
    rows = [[1.0 + i + n for n in range(8)] for i in range(5)]
    lines = read_jsonl(tmp_path / "first.jsonl")
    assert [(line["_step"], line["sum"], line["x"]) for line in lines] == list(
        zip(steps, sums, rows, strict=True)
    )
    assert [line["sum"] for line in read_jsonl(tmp_path / "time.jsonl") if "sum" in line] == sums
    for path in [tmp_path / "saved.h5", first["paths"][-1]]:
        logs = spoolax.load(path)
        assert (logs["sum"].tolist(), logs["x"].tolist()) == (sums, rows)
    with spoolax.open(tmp_path / "frames.h5") as frames:
        assert frames["frames/x"][:].tolist() == rows[::2]
    assert first["silent"] == [False] * 5
    assert first["refused"].startswith("LogFileError: ")
    assert first["restored"] == [5, True, True]
    for number, other in enumerate(others, 1):
        assert other["silent"] == [True, False, True, True, True]
        mine = str(tmp_path / f"each-p{number:04}.jsonl")
        assert other["paths"] == [first["paths"][0], mine, *first["paths"][2:]]
        assert [line["process"] for line in read_jsonl(mine)] == [number] * 5
        assert other["refused"].startswith("ProcessError: Process 0 could not open JsonlLogger(")
        assert other["restored"] == [5, True, True]
    for number, one in enumerate([first, *others]):
        name = f"each-p{number:04}" if number else "each"
        assert one["tracked"] == [first["tracked"][0], name, "each" if count > 1 else None]
        assert one["mine"] is None
        if count > 1:
            assert "make `every` a number of steps" in one["time"]
    (each,) = tmp_path.glob("each-*/")
    with spoolax.open(each) as whole:
        parts = ["process", *(f"p{number:04}/process" for number in range(1, count))]
        assert sorted(whole.keys()) == sorted(parts)
        assert [whole[part][:].tolist() for part in parts] == [[n] * 4 for n in range(count)]


def test_processes_that_open_different_paths_are_told_which(tmp_path):
    first, (error, said) = run("opened_apart", 2, str(tmp_path))
    assert first == [None, []]
    for message in (error, *said):
        assert f"opens JsonlLogger('{tmp_path}/1.jsonl')" in message
        assert f"but JsonlLogger('{tmp_path}/0.jsonl'), which this process has not" in message
    assert error.startswith("ProcessError: ")
    assert len(said) == 1


@pytest.mark.parametrize("count", [1, 2])
def test_rows_are_written_by_all_processes_that_have_pieces_of_them(count, tmp_path):
    path = tmp_path / "frames.zarr"
    for number, told in enumerate(run("stored", count, str(path), devices=4 // count)):
        assert told == [number > 0, number > 0, [2, 400]]
    x = np.arange(3200, dtype=np.float32).reshape(8, 400)
    frames, sums = [x + 1, x + 3, x + 6, x + 6, 0 * x + 1], [1, 2, 3, *[6] * 5]
    with spoolax.open(path) as whole:
        assert np.array_equal(whole["frames/x"][:], np.stack(frames))
        expected = [np.sum(x + n, dtype=np.float64) for n in sums]
        assert whole["sums/sum"][:].tolist() == [*expected, 3200]
        assert np.array_equal(whole["first/x"][:], x[None] + 1)
        assert whole.status == "finished"
    chunks = [file for file in (path / "frames/x/c").rglob("*") if file.is_file()]
    assert len(chunks) == 4 * len(frames), "one for each device"


def test_rows_that_all_have_written_count_though_one_has_no_more(tmp_path):
    path = tmp_path / "frames.zarr"
    first, second = run("left_early", 2, str(path))
    assert second == "ValueError: no more"
    assert "Process 1 has not written its pieces of row 6 of 'frames'. It has closed" in first
    with spoolax.open(path) as whole:
        assert whole["frames/x"][:][:, 0, 0].tolist() == [0, 1, 2, 3, 4]
        assert whole.status == "failed"


@pytest.mark.parametrize("where", [0, 1])
def test_no_row_follows_one_that_a_process_could_not_take(where, tmp_path):
    path = tmp_path / "frames.zarr"
    told = run("skipped", 2, str(path), where)
    for number, (error, raised) in enumerate(told):
        assert raised == (["KeyError: 'x'"] * 5 if number == where else [])
        if number in (where, 1):
            assert error is None
        else:
            assert "Process 1 has not written its pieces of row 6 of 'frames'." in error
            assert "KeyError: 'x'" in error
    with spoolax.open(path) as whole:
        assert whole["frames/x"][:][:, 0, 0].tolist() == [0, 1, 2, 3, 4]
        assert whole.status == "failed"


def test_an_error_is_not_hidden_behind_a_process_that_is_waited_for(tmp_path):
    """One that has failed waits for the rows of others for some seconds only, and says so."""
    path = tmp_path / "frames.zarr"
    ((note,), (said, *_)), _ = run("left_waiting", 2, str(path))
    assert re.match(r"Row [56] of 'frames' waits for its pieces in process 1\.", said)
    assert "Process 1 has not written its pieces of row 5 of 'frames'." in note
    with spoolax.open(path) as whole:
        assert whole["frames/x"][:][:, 0, 0].tolist() == [0, 1, 2, 3]
        assert whole.status == "failed"


def test_errors_and_stops_of_callbacks():
    first, second = run("listened", 2)
    broken = "ValueError: broken"
    late = first.pop()
    assert "Not all processes came to `spoolax.flush(everywhere=True)` within 0.5" in late
    stopped = "StopRun: enough", [28.0, 36.0, 44.0]
    assert first == [100, [0], broken, 28 + 800, *stopped, *stopped]
    other = "StopRun: Another process stopped this program.", []
    assert second == [0, [], None, 28 + 800, *other, *other, None]


def test_a_simulation_stops_after_the_same_step_on_all_processes():
    first, second = run("simulated", 2)
    for one in (first, second):
        assert one["whole"] == [300.0, False, [], "finished"]
        assert one["until"] == [50.0, False, [], "finished"]
        assert one["again"] == [10.0, False, [], None]
    steps = len(first["logged"])
    assert 21 <= steps < 300
    for one in (first, second):
        said = [f"Interrupted after {steps} of 300 steps."]
        assert one["interrupted"] == [3 + steps, True, said, "interrupted"]  # With the warm-up.
        assert one["logged"] == list(range(steps))
    other = "StopRun: Another process stopped this simulation."
    assert first["stopped"] == ["StopRun: enough", False, [], "interrupted"]
    assert second["stopped"] == [other, False, [], "interrupted"]
    steps, *_ = first["converged"]
    assert 31 <= steps < 300
    assert first["converged"] == second["converged"] == [steps, False, [], "finished"]
    assert first["at the end"] == [other, False, [], "interrupted"]
    assert second["at the end"] == ["StopRun: late", False, [], "interrupted"]


def test_what_was_written_is_there_when_a_process_dies(tmp_path):
    """Though the others end as well, without a chance to close anything."""
    (first, second), _ = ended(start("killed", 2, str(tmp_path)))
    assert second == -signal.SIGKILL
    assert first != 0
    lines = [line["x"] for line in read_jsonl(tmp_path / "log.jsonl")]
    for rows in (lines, spoolax.load(tmp_path / "log.h5")["x"].tolist()):
        assert len(rows) >= 30
        assert rows == [[1.0 + i + n for n in range(8)] for i in range(len(rows))]
    with spoolax.open(tmp_path / "log.zarr") as run:
        frames = run["frames/x"][:]
    assert len(frames) >= 30
    for i, frame in enumerate(frames):
        assert np.array_equal(frame, np.repeat(np.arange(8) + 1.0 + 2 * i, 400).reshape(8, 400))
