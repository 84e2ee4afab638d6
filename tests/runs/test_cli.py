"""The command: what it prints, its exit codes, and what it says when something is wrong."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from recorded import train

import spoolax
from spoolax.cli.commands import COMMANDS, app

pytestmark = pytest.mark.once


def call(*arguments, code=0):
    """Call the command, and return what it prints: its output, or what it says is wrong."""
    ran = CliRunner().invoke(app, [str(one) for one in arguments], prog_name="spoolax")
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == code, ran.output
    return ran.stderr if code == 2 else ran.stdout


@pytest.fixture
def here(runs, monkeypatch):
    """In the directory with `runs`, where a user would be."""
    monkeypatch.chdir(runs.parent)
    return runs.parent


def test_help_lists_every_command():
    text = call("--help")
    for name in COMMANDS:
        assert f"  {name} " in text
        assert "Usage: spoolax" in call(name, "--help")
    assert call("--version").strip() == f"spoolax {spoolax.__version__}"


def test_ls(here):
    text = call("ls")
    for word in ("train-", "other-", "seeds-", "(3 inside)", "saved.h5", "finished", "train/loss="):
        assert word in text
    found = json.loads(call("ls", "--json"))
    assert len(found) == 6
    assert {"name", "status", "start", "duration", "step", "size", "config", "last"} <= set(
        found[0]
    )
    assert "The latest 2 of 6 runs" in call("ls", "-n", 2)
    assert "There are no runs in 'nowhere'" in call("ls", "nowhere", code=2)
    (here / "empty").mkdir(exist_ok=True)
    assert "`spoolax demo` makes one" in call("ls", "empty")


def test_show(here):
    text = call("show", "train")
    for word in ("finished", "config rate", "0.1", "train/loss", "weights", "float32[3]", "▁"):
        assert word in text
    assert "run-2/x" in call("show", "seeds")
    assert "10 values" in call("show", "seeds", "run-1/x")
    assert "20 values of float32" in call("show", "train", "train/loss")
    found = json.loads(call("show", "train", "--json"))
    assert found["meta"]["config"]["net"] == {"width": 3}
    values = json.loads(call("show", "runs/saved.h5", "accuracy", "--json"))
    assert values == {"key": "accuracy", "steps": [0, 100, 200], "values": [0, 10, 20]}
    assert "Did you mean 'train/loss'" in call("show", "train", "los", code=2)
    assert "There is no run 'nonsense'" in call("show", "nonsense", code=2)


def test_a_run_is_found_by_the_beginning_of_its_name(here):
    latest = train(here / "more", steps=1, name="a")
    time.sleep(1.1)
    last = train(here / "more", steps=1, name="b")
    assert str(latest) in call("show", "a", "-d", "more")
    assert str(last) in call("show", "last", "-d", "more")
    assert str(latest) in call("show", latest)
    assert "Did you mean" in call("show", "c-2026", "-d", "more", code=2)


def test_plot(here, tmp_path):
    for suffix in ("png", "svg", "pdf"):
        path = tmp_path / f"a.{suffix}"
        call("plot", "train", "other", "train/loss", "-o", path, "--log-y", "--smooth", 0.5)
        assert path.stat().st_size > 1000
    text = call("plot", "train", "other", "train/*")
    assert "train/loss" in text
    assert "other-" in text
    assert "│" in text
    assert "x" in call("plot", "seeds")
    assert "weights" in call("plot", "train", "weights", "--x", "time")
    assert "must end with one of" in call("plot", "train", "-o", tmp_path / "a.xyz", code=2)
    assert "Did you mean" in call("plot", "train", "train/los", code=2)
    assert "Cannot write" in call("plot", "train", "-o", tmp_path / "no" / "a.png", code=2)


def test_export(here, tmp_path):
    call("export", "saved.h5", "-o", tmp_path / "a.csv")
    with open(tmp_path / "a.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 33
    assert rows[0]["accuracy"] == "0.0"
    assert rows[2]["accuracy"] == ""
    call("export", "saved.h5", "loss", "-o", tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())[1] == {"step": 0, "loss": 5.0}
    call("export", "saved.h5", "-o", tmp_path / "a.npz")
    arrays = np.load(tmp_path / "a.npz")
    assert arrays["deep/w"].shape == (30, 2)
    assert arrays["loss@step"].tolist()[:3] == [0, 0, 10]
    polars = pytest.importorskip("polars")
    call("export", "saved.h5", "-o", tmp_path / "a.parquet")
    assert polars.read_parquet(tmp_path / "a.parquet").shape == (33, 5)
    assert "must end with one of" in call("export", "saved.h5", "-o", "a.txt", code=2)
    assert "Cannot write" in call("export", "saved.h5", "-o", tmp_path / "no" / "a.csv", code=2)


def test_diff(here, tmp_path):
    shutil.copytree(next(here.glob("runs/train-*")), tmp_path / "copy")
    assert "the same" in call("diff", "train", tmp_path / "copy")
    assert "Both are train-" in call("diff", "train", "train", code=2)
    assert "lines.jsonl / whole.h5" in call("diff", code=1)  # The two latest.
    text = call("diff", "train", "other", code=1)
    assert "rate" in text
    assert "step 1: 0.81 / 0.64" in text
    found = json.loads(call("diff", "train", "other", "--json", code=1))
    assert found["config"] == {"rate": [0.1, 0.2]}
    assert found["keys"]["train/loss"]["step"] == 1
    assert found["keys"]["train/loss"]["largest"] > 0.1
    assert "only in the first" in call("diff", "saved.h5", "lines.jsonl", code=1)
    shutil.copytree(next(here.glob("runs/seeds-*")), tmp_path / "seeds")
    assert "run-2/x" in call("diff", "seeds", tmp_path / "seeds")


def test_diff_compares_values_of_the_same_steps(tmp_path):
    values = {0: 1.0, 1: 2.0, 2: 3.0, 4: np.inf}
    changes = {"missing": {1: None}, "far": {4: 5.0}, "nan": {2: np.nan}}
    for name, change in {"whole": {}, **changes}.items():
        with spoolax.storage.SaveLogger(tmp_path / f"{name}.h5") as logger:
            for step, value in (values | change).items():
                if value is not None:
                    logger.log({"x": value}, step)

    def compared(name):
        paths = [tmp_path / "whole.h5", tmp_path / f"{name}.h5"]
        return json.loads(call("diff", *paths, "--json", code=1))["keys"]["x"], paths

    found, paths = compared("missing")
    assert found == {"different": True, "alone": [1, 0], "values": [4, 3]}
    assert "1 step only in the first, 0 steps only in the second" in call("diff", *paths, code=1)
    found, paths = compared("far")
    assert (found["step"], found["largest"]) == (4, "Infinity")
    assert "not finite" in call("diff", *paths, code=1)
    found, _ = compared("nan")
    assert (found["step"], found["second"]) == (2, "nan")


def test_a_key_with_nothing_to_draw_does_not_hide_the_others(tmp_path):
    with spoolax.storage.SaveLogger(tmp_path / "a.h5") as logger:
        for i in range(3):
            logger.log({"bad": np.nan, "good": i}, i)
    text = call("plot", tmp_path / "a.h5")
    assert "good" in text
    assert "Nothing to draw of 'bad': no number is finite." in text
    assert "nothing to draw of 'bad'" in call("plot", tmp_path / "a.h5", "bad", code=2)


def test_tail_follows_lines_if_asked_to(tmp_path):
    path = tmp_path / "a.jsonl"
    with spoolax.loggers.JsonlLogger(path) as logger:
        logger.log({"x": 1}, 0)
        spoolax.flush()
        tail = [sys.executable, "-m", "spoolax", "tail", str(path)]
        following = subprocess.Popen([*tail, "--follow"], stdout=subprocess.PIPE, text=True)
        assert following.stdout.readline() == "step 0  x=1\n"
        logger.log({"x": 2}, 1)
        assert following.stdout.readline() == "step 1  x=2\n"
    following.send_signal(signal.SIGINT)
    assert following.wait(60) == 130
    following.stdout.close()
    assert call("tail", path, "-n", 1) == "step 1  x=2\n"


def test_tail_has_one_line_for_each_step(tmp_path):
    def f(x):
        def body(x, i):
            spoolax.log({"a": x})
            spoolax.log({"b": -x})
            return x + 1, None

        return jax.lax.scan(body, x, jnp.arange(20))[0]

    with spoolax.storage.SaveLogger(tmp_path / "a.h5") as logger:
        logger.tap(f)(0)
    lines = call("tail", tmp_path / "a.h5", "-n", 2).splitlines()
    assert lines == ["step 18  a=18  b=-18", "step 19  a=19  b=-19", "-- finished"]
    assert "Did you mean" in call("tail", tmp_path / "a.h5", "ab", code=2)


def test_tables_fit_into_terminals_of_any_width(here, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    for width in (60, 80, 110, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        text = re.sub("\\x1b[^m]*m", "", call("ls"))
        for line in text.splitlines():
            assert len(line.rstrip()) <= width
        assert re.search(r"train-[-0-9]{17} +finished", text)
        text = re.sub("\\x1b[^m]*m", "", call("show", "train"))
        assert "train/loss" in text
        assert "course" in text


def test_runs_that_may_not_be_read(tmp_path, monkeypatch):
    train(tmp_path, steps=1, name="good")
    (tmp_path / "closed").mkdir()
    scan, may = os.scandir, os.access

    def scandir(path):
        if str(path).endswith(closed):
            raise PermissionError(13, "Permission denied")
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    closed = "/closed"
    text = call("ls", tmp_path)
    assert "Not a run: closed (Permission denied.)" in text
    assert "good-" in text
    other = train(tmp_path, steps=1, name="other")
    monkeypatch.setattr(os, "access", lambda path, how: may(path, how) and "other" not in str(path))
    assert "log.h5': Permission denied" in call("show", other, code=2)
    closed = tmp_path.name
    assert "Permission denied" in call("ls", tmp_path, code=2)


def test_tail(here):
    lines = call("tail", "train", "-n", 2).splitlines()
    assert lines[0].startswith("step 18  train/loss=")
    assert lines[-1] == "-- finished"
    assert "run-0/x=" in call("tail", "seeds")
    (line,) = call("tail", "train", "train/*", "-n", 1, "--json").splitlines()
    assert json.loads(line)["_step"] == 19


def test_tail_follows_a_run_that_another_process_writes(tmp_path):
    code = """if True:
        import sys, time, spoolax
        with spoolax.run("live", directory=sys.argv[1], show=False) as run:
            for i in range(40):
                run.log({"i": i}, i)
                time.sleep(0.05)
    """
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    while not list(tmp_path.glob("live-*/log.h5")):
        assert writer.poll() is None
        time.sleep(0.05)
    ran = subprocess.run(
        [sys.executable, "-m", "spoolax", "tail", "last", "-d", str(tmp_path), "-n", "100"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert writer.wait() == 0
    lines = ran.stdout.splitlines()
    assert lines == [*(f"step {i}  i={i}" for i in range(40)), "-- finished"], ran.stderr


def test_check_and_repair_after_a_crash(tmp_path):
    code = """if True:
        import os, signal, sys, time, spoolax
        with spoolax.run("crash", directory=sys.argv[1], show=False) as run:
            for i in range(50):
                run.log({"i": i}, i)
            spoolax.flush()
            time.sleep(1.5)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert ran.returncode == -signal.SIGKILL
    text = call("check", "last", "-d", tmp_path)
    assert "crashed" in text
    assert "50 rows of i" in text
    assert "50 rows" in call("repair", "last", "-d", tmp_path)
    h5py = pytest.importorskip("h5py")
    (path,) = tmp_path.glob("crash-*")
    with h5py.File(path / "log.h5"):
        pass  # Others can read it now.
    assert spoolax.open(path)["i"][:].tolist() == list(range(50))
    assert "nothing to repair" in call("repair", "last", "-d", tmp_path)
    with spoolax.run("live", directory=tmp_path, show=False) as run:
        assert "is being written" in call("repair", run.path, code=2)


def test_repair_keeps_how_a_trajectory_was_stored(tmp_path):
    code = """if True:
        import os, sys, time, jax.numpy as jnp, spoolax
        from spoolax.storage import HDF5StorageWriter, WriterGroupConfig
        schema = {"frames": WriterGroupConfig(lambda x: {"positions": x})}
        options = {"compression": "gzip", "layout": "h5md", "units": {"positions": "nm"}}
        with HDF5StorageWriter(sys.argv[1], schema, jnp.zeros((5, 3)), **options) as writer:
            for i in range(9):
                writer.log(jnp.full((5, 3), i, jnp.float32), i)
            writer.commit()
            os._exit(9)
    """
    path = tmp_path / "frames.h5"
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == 9
    os.utime(path, (1e9, 1e9))
    with spoolax.open(path) as crashed:
        start = crashed.start
    assert "9 rows" in call("repair", path)
    with spoolax.open(path) as run:
        assert (run.status, run.start) == ("crashed", start)
        assert "resumed" not in run.meta
        assert run.sources[0].end() == 1e9
        assert run["frames/positions"][-1].tolist() == np.full((5, 3), 8.0).tolist()
    with pytest.importorskip("h5py").File(path) as file:
        value = file["particles/trajectory/position/value"]
        assert (value.compression, value.attrs["unit"]) == ("gzip", "nm")


def test_damaged_files_are_named(here, tmp_path):
    shutil.copy("runs/saved.h5", tmp_path / "cut.h5")
    os.truncate(tmp_path / "cut.h5", 6000)
    (tmp_path / "empty.h5").touch()
    (tmp_path / "text.h5").write_text("hello")
    for name in ("cut.h5", "empty.h5", "text.h5"):
        (line,) = call("show", tmp_path / name, code=2).splitlines()
        assert line.startswith("spoolax: ")
    text = call("ls", tmp_path)
    assert text.count("Not a run") == 3
    if os.getuid():
        shutil.copy("runs/saved.h5", tmp_path / "mine.h5")
        os.chmod(tmp_path / "mine.h5", 0)
        assert "spoolax: " in call("show", tmp_path / "mine.h5", code=2)


def test_debug_shows_where_an_error_comes_from(here):
    ran = CliRunner().invoke(app, ["--debug", "show", "nonsense"])
    assert isinstance(ran.exception, spoolax.errors.StorageError)


def test_fit(tmp_path):
    x = np.linspace(0, 5, 50)
    table = np.stack([x, 3 * np.exp(-0.7 * x) + 0.5], axis=1)
    path = tmp_path / "data.csv"
    np.savetxt(path, table, delimiter=",", header="t,signal", comments="")
    columns = ("--x", "t", "--y", "signal")
    model = ("--model", "a*exp(-b*x)+c")
    text = call("fit", path, *model, *columns, "--plot", tmp_path / "fit.png")
    assert "50 points, 3 parameters" in text
    assert (tmp_path / "fit.png").stat().st_size > 1000
    found = json.loads(call("fit", path, *model, *columns, "--p0", "a=2, b=1, c=0", "--json"))
    values = [one["value"] for one in found["parameters"].values()]
    assert np.allclose(values, [3, 0.7, 0.5])
    assert "There is no column 'q'" in call("fit", path, *model, "--x", "q", code=2)
    assert "is not possible" in call("fit", path, "-m", "a*open(x)", *columns, code=2)
    assert "--p0" in call("fit", path, *model, *columns, "--p0", "a", code=2)
    assert "No such file" in call("fit", tmp_path / "no.csv", *model, code=2)


def test_doctor():
    found = json.loads(call("doctor", "--json"))
    assert found["spoolax"] == spoolax.__version__
    assert "microseconds" in found["a streamed step"]
    assert "h5py" in found["extra hdf5"]


def test_replay_says_what_is_missing(here):
    assert "does not say which tracker" in call("replay", "runs/lines.jsonl", code=2)


def test_completion():
    assert "_SPOOLAX_COMPLETE" in call("completion", "bash")


@pytest.mark.parametrize("which", ["train", "md", "ising", "fit"])
def test_demos_end_with_a_plot_and_what_to_type_next(which, tmp_path):
    command = [sys.executable, "-m", "spoolax", "demo", which]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (one,) = spoolax.runs(tmp_path / "runs")
    assert one.status == "finished"
    assert "⠤" in ran.stdout or "⣿" in ran.stdout
    assert f"spoolax show runs/{one.name}" in ran.stdout
    assert ran.stderr == ""


def test_commands_that_read_start_without_jax(here):
    """And whoever stops reading the output does no harm."""
    code = """if True:
        import sys
        sys.argv = ["spoolax", *{!r}]
        from spoolax.cli.app import main
        try:
            main()
        finally:
            print("jax" in sys.modules, file=sys.stderr)
    """
    for arguments in (["ls"], ["show", "train"], ["tail", "train"], ["diff", "train", "other"]):
        ran = subprocess.run(
            [sys.executable, "-c", code.format(arguments)], capture_output=True, text=True
        )
        assert ran.stderr.strip() == "False", (arguments, ran.stderr)
    pipe = subprocess.run(
        f"{sys.executable} -m spoolax show runs/saved.h5 --json | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert pipe.stderr == ""
