"""`spoolax.run` records what happens in its block, and `spoolax.open` looks at it."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recorded import step, train

import spoolax
from spoolax._runs.figure import draw
from spoolax.errors import LogFileError, LogValueError, MissingKeyError, StorageError
from spoolax.loggers import RingBufferLogger
from spoolax.storage import EveryNStep, HDF5StorageWriter, WriterGroupConfig

pytestmark = pytest.mark.once


def test_everything_in_the_block_is_stored(tmp_path):
    ring = RingBufferLogger(100)
    with spoolax.run("two moons/1", {"rate": 0.1}, ring, directory=tmp_path, show=False) as run:
        x = 1.0
        for _ in range(3):
            x = step(x, 0.5)
        spoolax.log({"final": x})
        run.log({"by hand": 7}, 12)
        run.tap(lambda x: spoolax.log({"tapped": x}, step=5))(2.0)
    assert re.fullmatch(r"two-moons-1-\d{4}-\d\d-\d\d-\d{6}", run.path.name)
    with spoolax.open(run.path) as found:
        assert found.status == "finished"
        assert found.config == {"rate": 0.1}
        assert found["train/loss"][:].tolist() == [1.0, 0.25, 0.0625]
        assert found["train/loss"].steps.tolist() == [0, 1, 2]
        assert found["weights"].shape == (3,)
        assert found["final"][0] == 0.125
        assert found["by hand"].steps.tolist() == [12]
        assert found["tapped"].steps.tolist() == [5]
        assert found.last_step == 12
        assert {"command", "host", "versions", "commit"} <= set(found.meta)
    assert len(ring.records) == 6
    step(1.0, 0.5)  # Nobody listens any more.
    spoolax.flush()
    assert len(spoolax.load(run.path)["train/loss"]) == 3


def test_runs_of_one_name_never_clash(tmp_path):
    paths = [train(tmp_path, steps=1) for _ in range(3)]
    assert len(set(paths)) == 3
    assert len(spoolax.runs(tmp_path)) == 3


def test_what_differs_from_the_last_commit_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    Path("code.py").write_text("a = 1\n")
    for command in (["init", "-q"], ["add", "code.py"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)
    clean = train(tmp_path / "runs", steps=1)
    Path("code.py").write_text("a = 2\n")
    changed = train(tmp_path / "runs", steps=1)
    assert not (clean / "uncommitted.diff").exists()
    assert "+a = 2" in (changed / "uncommitted.diff").read_text()
    assert len(spoolax.open(changed).meta["commit"]) == 40


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), "interrupted"), (ValueError("too bad"), "failed")],
)
def test_it_says_how_it_ended(tmp_path, error, status, capsys):
    with (
        pytest.raises(type(error)),
        spoolax.run("train", directory=tmp_path, announce=True) as run,
    ):
        step(1.0, 0.1)
        raise error
    with spoolax.open(run.path) as found:
        assert found.status == status
        assert len(found["train/loss"]) == 1
    assert f"spoolax show {run.path}" in capsys.readouterr().out


def test_a_callback_that_stops_the_run_interrupts_it(tmp_path):
    class Enough(spoolax.Logger):
        takes_entries = True

        def log(self, state, step):
            raise spoolax.StopRun("enough")

    with (
        pytest.raises(spoolax.StopRun, match="enough"),
        spoolax.run("train", None, Enough(), directory=tmp_path, show=False) as run,
    ):
        step(1.0, 0.1)
    assert spoolax.open(run.path).status == "interrupted"


def test_one_run_for_each_seed(runs):
    (path,) = runs.glob("seeds-*")
    with spoolax.open(path) as run:
        assert list(run.runs) == ["run-0", "run-1", "run-2"]
        assert [len(one["x"]) for one in run.runs.values()] == [10] * 3
        last = np.mean([one["x"][-1] for one in run.runs.values()])
        assert run.last() == {"x": pytest.approx(last)}
        assert run.last_step == 9
        line = run.plot("x").axes[0].lines[0]
        assert line.get_ydata()[-1] == pytest.approx(last)


def test_a_trajectory_in_the_directory_belongs_to_the_run(tmp_path):
    schema = {"frames": WriterGroupConfig(lambda s: {"x": s}, EveryNStep(2))}
    with spoolax.run("md", directory=tmp_path, show=False) as run:
        with HDF5StorageWriter(run.path / "frames.h5", schema, jnp.zeros(2)) as writer:
            for i in range(4):
                writer.log(jnp.ones(2) * i, i)
        spoolax.log({"done": 1})
    with spoolax.open(run.path) as found:
        assert list(found) == ["done", "frames/frames/x"]
        assert found["frames/frames/x"].steps.tolist() == [0, 2]


def test_files_of_every_kind_open_the_same_way(runs):
    with spoolax.open(runs / "saved.h5") as run:
        assert list(run) == ["loss", "deep/w", "accuracy"]
        loss = run["loss"]  # It is in two tables.
        assert loss.steps.tolist()[:3] == [0, 0, 10]
        assert loss[:3].tolist() == [1.0, 5.0, 0.5]
        assert loss[-1] == 1 / 30
        assert loss[::-10].tolist() == loss[:][::-10].tolist()
        assert run["deep/w"][-2:].tolist() == [[28, 28], [29, 29]]
        assert np.array_equal(np.asarray(run["accuracy"]), [0, 10, 20])
        assert run["loss"].times is not None
    with spoolax.open(runs / "lines.jsonl") as run:
        assert run.status == ""
        assert run["loss"][:].tolist() == [0.0, 0.5, 1.0, 1.5]
        assert run["pair"].shape == (2,)
        assert run["pair"].spread()[2].tolist() == [0, 1, 2, 3]
    with spoolax.open(runs / "whole.h5") as run:
        assert run["x"][:].tolist() == [0.0, 1.0, 2.0]
    with spoolax.open(Path(__file__).parents[1] / "data" / "format-1.h5") as run:
        assert "frames/x" in run
        assert len(run.focus_group("frames")) == 3
        assert run.steps("frames").tolist() == run.steps("frames/x").tolist()


def test_tables_have_a_row_for_each_step(runs):
    frame = spoolax.open(runs / "saved.h5").to_pandas()
    assert list(frame.columns) == ["step", "loss", "deep/w[0]", "deep/w[1]", "accuracy"]
    assert len(frame) == 33
    assert frame["accuracy"].notna().sum() == 3
    assert frame["step"].is_monotonic_increasing
    some = spoolax.open(runs / "saved.h5").to_pandas("acc*")
    assert some["accuracy"].tolist() == [0, 10, 20]
    assert spoolax.open(runs / "saved.h5").to_xarray()["loss"].sizes == {"entry_loss": 33}


def test_a_key_that_is_missing_is_named(runs):
    run = spoolax.open(runs / "saved.h5")
    with pytest.raises(KeyError, match=r"has no 'los'\. Did you mean 'loss'"):
        run["los"]
    with pytest.raises(MissingKeyError, match="only 'loss', 'deep/w', 'accuracy'"):
        run.filter("zzz*")
    with pytest.raises(IndexError, match="has 3 values"):
        run["accuracy"][33]
    with pytest.raises(LogValueError, match="cannot be drawn by 'epoch'"):
        run.plot("loss", x="epoch")
    with pytest.raises(LogValueError, match="from 0"):
        run.plot("loss", smooth=1.5)


def test_what_is_no_run_is_refused(tmp_path, runs):
    (tmp_path / "a.h5").write_bytes(b"nonsense")
    (tmp_path / "b.jsonl").write_text("nonsense\n")
    with pytest.raises(StorageError, match="not an HDF5 file"):
        spoolax.open(tmp_path / "a.h5")
    with pytest.raises(StorageError, match="not a file of a JsonlLogger"):
        spoolax.open(tmp_path / "b.jsonl")
    with pytest.raises(StorageError, match="There is no file"):
        spoolax.open(tmp_path / "c.h5")
    with pytest.raises(StorageError, match=r"`spoolax.runs\(directory\)` lists"):
        spoolax.open(runs)
    if os.getuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(LogFileError, match="Cannot make a directory"):
            train(tmp_path / "locked" / "runs")


def test_a_run_is_followed_while_it_is_written(tmp_path):
    opened, seen = threading.Event(), []

    def write():
        with spoolax.run("live", directory=tmp_path, show=False) as run:
            for i in range(30):
                run.log({"i": i}, i)
                if i == 5:
                    spoolax.flush()
                    time.sleep(1.2)  # It is written within a second.
                    opened.set()
                time.sleep(0.005)

    writer = threading.Thread(target=write)
    writer.start()
    assert opened.wait(30)
    (path,) = tmp_path.iterdir()
    with spoolax.open(path) as run:
        assert run.status == "running"
        for entry in run.follow(poll=0.02, timeout=20):
            seen.append(entry.values["i"])
    writer.join()
    assert [int(i) for i in seen] == list(range(30))


def test_a_run_that_was_killed_goes_on_after_its_checkpoint(tmp_path):
    code = """if True:
        import os, signal, sys, time, jax, jax.numpy as jnp, spoolax
        with spoolax.run("crash", directory=sys.argv[1], show=False, resume=True) as run:
            state = {"x": jnp.zeros(3), "key": jax.random.key(0), "count": 0}
            state, start = run.restored(state)
            for i in range(start, 10):
                state = {**state, "x": state["x"] + i, "count": state["count"] + 1}
                run.log({"sum": state["x"][0]}, i)
                run.checkpoint(state, i) if i % 2 else None
                if i == 6 and not start:
                    spoolax.flush()
                    time.sleep(1.5)
                    os.kill(os.getpid(), signal.SIGKILL)
            print(start, float(state["x"][0]), state["count"], jax.random.key_data(state["key"]))
    """
    first = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True)
    assert first.returncode == -signal.SIGKILL
    (one,) = spoolax.runs(tmp_path)
    assert one.status == "crashed"
    again = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert again.stdout.split()[:3] == ["6", "45.0", "10"]
    (one,) = spoolax.runs(tmp_path)
    assert one.status == "finished"
    sums = spoolax.load(one.path)["sum"]
    assert sums.tolist() == np.cumsum(np.arange(10.0)).tolist()
    train(tmp_path, name="crash", steps=1, resume=True)  # That one has finished.
    assert len(spoolax.runs(tmp_path)) == 2


def test_a_checkpoint_of_another_state_is_refused(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        with spoolax.run("a", directory=tmp_path, show=False) as run:
            run.checkpoint({"x": jnp.zeros(3)}, 4)
            raise KeyboardInterrupt
    with spoolax.run("a", directory=tmp_path, show=False, resume=True) as again:
        assert again.path == run.path
        for other in ({"x": jnp.zeros(2)}, {"y": jnp.zeros(3)}, {"x": jnp.zeros(3), "y": 1}):
            with pytest.raises(StorageError, match="is of another state"):
                again.restored(other)
        state, start = again.restored({"x": jnp.ones(3)})
        assert state["x"].tolist() == [0, 0, 0]
        assert start == 5
    with pytest.raises(StorageError, match="has no checkpoint"):
        with spoolax.run("a", directory=tmp_path, show=False, resume=tmp_path):
            pass


def test_reading_runs_does_not_import_jax(runs):
    code = f"""if True:
        import sys
        sys.argv = ["spoolax"]
        import spoolax
        found = spoolax.runs({str(runs)!r})
        for one in found:
            run = one.open()
            run.last(), run.curves(), [curve.numbers() for curve in run.values()]
        print(len(found), "jax" in sys.modules)
    """
    (runs / ".spoolax-index.json").unlink(missing_ok=True)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["6", "False"]


def test_the_index_is_never_wrong(tmp_path):
    path = train(tmp_path, steps=3)
    assert spoolax.runs(tmp_path)[0].step == 2
    index = tmp_path / ".spoolax-index.json"
    known = json.loads(index.read_text())
    known["runs"][path.name]["summary"]["step"] = 77  # To see that it is used,
    index.write_text(json.dumps(known))
    assert spoolax.runs(tmp_path)[0].step == 77
    os.utime(path / "log.h5")  # and not any more when a file has changed.
    assert spoolax.runs(tmp_path)[0].step == 2
    for broken in (
        "nonsense",
        "[]",
        '{"version": 1, "runs": {"x": 3}}',
        '{"version": 1}',
        '{"version": 1, "runs": []}',
    ):
        index.write_text(broken)
        assert spoolax.runs(tmp_path)[0].step == 2
    with spoolax.run("live", directory=tmp_path, show=False):
        assert [one.status for one in spoolax.runs(tmp_path)] == ["finished", "running"]
    assert [one.status for one in spoolax.runs(tmp_path)] == ["finished", "finished"]


def test_lists_leave_out_what_is_no_run(tmp_path):
    train(tmp_path / "group" / "deeper", steps=1)
    (tmp_path / "bad.h5").write_bytes(b"nonsense")
    found = spoolax.runs(tmp_path)
    assert len(found) == 1
    assert found[0].name.startswith("group/deeper/train-")
    assert "not an HDF5 file" in found.skipped[tmp_path / "bad.h5"]
    assert "train-" in repr(found)
    with pytest.raises(StorageError, match="does not exist"):
        spoolax.runs(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="Did you mean"):
        found["group/deeper/train"]


def test_they_have_an_html_form(runs):
    for path in (*runs.glob("train-*"), runs / "saved.h5", runs / "lines.jsonl"):
        html = spoolax.open(path)._repr_html_()
        assert "<svg" in html
        assert "loss" in html
    assert "saved.h5" in spoolax.runs(runs)._repr_html_()


def test_donated_states_and_many_keys(tmp_path):
    """A state whose buffers are donated right after, and a key that appears late."""
    update = jax.jit(lambda x: x + 1, donate_argnums=0)
    with spoolax.run("donated", directory=tmp_path, show=False) as run:
        x = jnp.zeros(4)
        for i in range(5):
            run.log({"x": x, **({"late": i} if i > 2 else {})}, i)
            x = update(x)
    with spoolax.open(run.path) as found:
        assert found["x"][:].tolist() == [[i] * 4 for i in range(5)]
        assert found["late"].steps.tolist() == [3, 4]


def test_a_simulation_goes_on_to_the_bit(tmp_path):
    """In two lines, after it was stopped, and whatever the steps in between log."""

    def step(key, x):
        x = x + jax.random.normal(key, (3,))
        spoolax.log({"first": x[0]})
        return x

    def simulate(stop=None):
        class Stop(spoolax.Logger):
            def log(self, state, i):
                if i == stop:
                    raise spoolax.StopRun

        with spoolax.run("walk", None, Stop(), directory=tmp_path, show=False, resume=True) as run:
            x = spoolax.simulate(
                step, jnp.zeros(3), 40, key=jax.random.key(0), warmup=3, logger=run, resume=run
            )
            return x, run.path

    with pytest.raises(spoolax.StopRun):
        simulate(stop=25)
    (path,) = tmp_path.glob("walk-*")
    assert (path / "checkpoint.h5").exists()  # Of its first step.
    got, again = simulate()
    want = spoolax.simulate(step, jnp.zeros(3), 40, key=jax.random.key(0), warmup=3)
    assert again == path
    assert got.tolist() == want.tolist()
    with spoolax.open(path) as found:
        assert found["first"].steps.tolist() == list(range(40))
    finished, new = simulate()
    assert finished.tolist() == want.tolist()
    assert new != path


def test_what_was_logged_before_a_checkpoint_is_there_after_a_crash(tmp_path):
    code = """if True:
        import os, sys, spoolax
        with spoolax.run("crash", directory=sys.argv[1], show=False) as run:
            for i in range(5):
                run.log({"x": float(i)}, i)
                run.checkpoint(float(i), i)
            os._exit(9)
    """
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert ran.returncode == 9
    with spoolax.run("crash", directory=tmp_path, show=False, resume=True) as run:
        x, start = run.restored(0.0)
        assert (x, start) == (4.0, 5)
        assert run.restored(7.0) == (7.0, 0)  # It is for one loop.
        run.log({"x": x + 1}, start)
    assert spoolax.load(run.path)["x"].tolist() == [0, 1, 2, 3, 4, 5]


def test_states_of_any_kind_come_back_as_they_were(tmp_path):
    state = {"a.b": np.zeros(3), "a": {"b": 1}, "key": jax.random.key(3), "n": jnp.int8(4)}

    def interrupted(kept):
        with pytest.raises(KeyboardInterrupt):
            with spoolax.run("a", directory=tmp_path, show=False) as run:
                run.checkpoint(kept, 4)
                raise KeyboardInterrupt

    interrupted({**state, "a.b": jnp.ones(3)})  # As a jitted step makes of it.
    with spoolax.run("a", directory=tmp_path, show=False, resume=True) as run:
        got, _ = run.restored(state)
        with pytest.raises(TypeError, match="a whole number"):
            run.checkpoint(state, 3.5)
    assert got["a.b"].tolist() == [1, 1, 1]
    assert got["a"] == {"b": 1}
    assert got["n"].dtype == jnp.int8
    assert jnp.array_equal(jax.random.key_data(got["key"]), jax.random.key_data(state["key"]))


def test_curves_outlive_the_file_that_they_were_opened_in(tmp_path):
    """A key that appears later means a new file."""
    with spoolax.storage.SaveLogger(tmp_path / "a.h5") as logger:
        logger.log({"a": 1.0}, 0)
        logger.commit()
        run = spoolax.open(tmp_path / "a.h5")
        a = run["a"]
        assert a[:].tolist() == [1.0]
        logger.log({"b": 1.0}, 1)
        logger.log({"a": 2.0}, 1)
        logger.commit()
        assert list(run) == ["a", "b"]
        assert a[:].tolist() == [1.0, 2.0]


def test_odd_values_are_shown(tmp_path):
    """Empty arrays, complex numbers, no entries at all, and settings that are no dictionary."""
    with spoolax.storage.SaveLogger(tmp_path / "a.h5", config=[1, 2]) as logger:
        for i in range(3):
            logger.log({"empty": np.zeros((0, 2)), "z": 3j + i, "nan": np.nan}, i)
    with spoolax.storage.SaveLogger(tmp_path / "a.h5", resume=-1) as logger:
        logger.log({"new": 1}, 0)
    run = spoolax.open(tmp_path / "a.h5")
    assert len(run["z"]) == 0
    assert run["z"].numbers().shape == (0,)
    assert len(run.to_pandas()) == 1
    assert "new" in run._repr_html_()
    with spoolax.storage.SaveLogger(tmp_path / "b.h5") as logger:
        logger.log({"empty": np.zeros((0, 2)), "z": 3j + 4}, 0)
    run = spoolax.open(tmp_path / "b.h5")
    assert run["z"].numbers().tolist() == [5.0]
    assert np.isnan(run["empty"].numbers()).all()
    assert run._repr_html_()
    assert len(spoolax.runs(tmp_path)) == 2


def test_colours_are_those_of_runs(tmp_path):
    for name, keys in (("a", ("loss",)), ("b", ("loss", "accuracy"))):
        with spoolax.storage.SaveLogger(tmp_path / f"{name}.h5") as logger:
            for i in range(3):
                logger.log(dict.fromkeys(keys, float(i)), i)
    both = [spoolax.open(tmp_path / f"{name}.h5") for name in "ab"]
    figure = draw(both, [])
    above, below = figure.axes
    colours = {line.get_label(): line.get_color() for line in above.get_legend().get_lines()}
    assert set(colours) == {"a.h5", "b.h5"}
    assert below.lines[0].get_color() == colours["b.h5"]


def test_other_files_in_the_directory_do_no_harm(tmp_path):
    """Files that are no runs are left out, and keys of several files do not replace each other."""
    with spoolax.run("a", directory=tmp_path, show=False) as run:
        run.log({"train/loss": 1.0}, 0)
        with spoolax.loggers.JsonlLogger(run.path / "train.jsonl") as logger:
            logger.log({"loss": 5.0}, 0)
        with spoolax.storage.SaveLogger(run.path / "train.h5") as logger:
            logger.log({"loss": 7.0}, 0)
    (run.path / "weights.h5").write_bytes(b"others")
    with spoolax.open(run.path) as found:
        values = {key: curve[0].item() for key, curve in found.items()}
        assert values == {"train/loss": 1.0, "train/loss#": 7.0, "train.jsonl/loss": 5.0}
        assert "not an HDF5 file" in found.skipped[run.path / "weights.h5"]
    assert len(spoolax.runs(tmp_path)) == 1


def test_keys_that_look_alike_are_not_mixed(tmp_path):
    with spoolax.storage.SaveLogger(tmp_path / "a.h5") as logger, logger.listening():
        for i in range(2):
            spoolax.log({"a/b": i})
            spoolax.log({"a": {"b": 10 * i}})
            spoolax.log({"half": jnp.ones((), jnp.bfloat16 if i else jnp.float8_e5m2)})
    with spoolax.open(tmp_path / "a.h5") as run:
        assert run["a/b"][:].tolist() == [0, 1]
        assert run["a/b#1"][:].tolist() == [0, 10]
        assert len(run["half"]) == len(run["half#1"]) == 1
        assert run.last()["half"] == 1.0


def test_values_and_steps_go_together_while_they_are_written(tmp_path):
    with spoolax.storage.SaveLogger(tmp_path / "a.h5") as logger:
        logger.log({"a": 1.0}, 0)
        logger.commit()
        live = spoolax.open(tmp_path / "a.h5")["a"]
        still = live.still()
        logger.log({"a": 2.0}, 1)
        logger.commit()
        assert len(still[:]) == len(still.steps) == len(still) == 1
        assert still[-1] == 1.0
        assert len(live[:]) == len(live.steps) == 2


def test_tables_of_odd_steps_and_keys(tmp_path):
    with spoolax.loggers.JsonlLogger(tmp_path / "a.jsonl") as logger:
        for i in range(4):
            logger.log({"step": 100 + i, "x": [i, -i], "x[0]": 7}, i / 4)
    frame = spoolax.open(tmp_path / "a.jsonl").to_pandas()
    assert frame["step"].tolist() == [0, 0.25, 0.5, 0.75]
    assert 103 in frame.iloc[-1].tolist()
    assert len(frame.columns) == len(set(frame.columns)) == 5


def test_lanes_and_arrays_of_one_key_are_not_mixed(tmp_path):
    def f(x):
        jax.lax.cond(x > 0, lambda: spoolax.log({"x": x}) and None, lambda: None)

    with spoolax.storage.SaveLogger(tmp_path / "a.h5") as logger:
        logger.log({"x": jnp.asarray([7.0, 8.0])}, 0)
        logger.tap(jax.vmap(f))(jnp.asarray([-1.0, 1.0]))
    with spoolax.open(tmp_path / "a.h5") as run:
        masks = {str(run[key].valid): run[key].numbers().tolist() for key in ("x", "x#1")}
        assert masks == {"None": [7.5], "[[False  True]]": [1.0]}


def test_a_fit_whose_logger_is_the_run_is_logged_once(tmp_path):
    x = np.linspace(0, 1, 50)

    def model(x, a):
        return jnp.exp(-a * x)

    counts = []
    for logs in (True, False):  # In its block, it hears the fit anyway.
        with spoolax.run("fit", directory=tmp_path, show=False) as run:
            options = {"logger": run} if logs else {}
            found = spoolax.fit.curve_fit(model, x, np.exp(-2 * x), p0=[1.0], **options)
        with spoolax.open(run.path) as stored:
            counts.append(len(stored["cost"]))
    assert counts[0] == counts[1] > 1
    assert found.success
