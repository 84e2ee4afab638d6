"""Fits of residuals, of many sets of data, of data in blocks, on meshes, and from the cache."""

import json
import os
import subprocess
import sys
from contextlib import nullcontext

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from fit_cases import POINTS, by_numpy, compilations, decay, measured

import spoolax
from spoolax.fit import curve_fit, curve_fit_batch, fit_file, least_squares
from spoolax.fit._data import blocks as data_blocks
from spoolax.fit._program import cache
from spoolax.fit._program import program as programs

pytestmark = pytest.mark.once


def residuals(p, x, y):
    return p[0] * jnp.exp(-p[1] * x) + p[2] - y


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "lm"},
        {"bounds": ([0, 0, 0], [3, 1, 1])},
        {"loss": "soft_l1", "f_scale": 0.1},
        {"x_scale": [1.0, 2.0, 3.0]},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_least_squares_is_that_of_scipy(options):
    y, start = measured(), [1.0, 0.5, 0.5]
    mine = least_squares(residuals, start, args=(POINTS, y), **options)
    theirs = scipy.optimize.least_squares(
        lambda p: by_numpy(POINTS, *p) - y, start, xtol=1e-12, ftol=1e-12, **options
    )
    np.testing.assert_allclose(mine.x, theirs.x, rtol=1e-5)
    np.testing.assert_allclose(mine.cost, theirs.cost, rtol=1e-8)
    np.testing.assert_allclose(mine.fun, theirs.fun, rtol=1e-3, atol=1e-5)
    assert mine.active_mask.tolist() == theirs.active_mask.tolist()
    assert mine.success


def test_least_squares_takes_what_scipy_takes():
    def fun(p, data, *, power):
        return (p["a"] - data) ** power if power > 1 else p["a"] - data

    found = least_squares(fun, {"a": np.zeros(2)}, args=(np.arange(2.0),), kwargs={"power": 1})
    np.testing.assert_allclose(found[0]["a"], [0, 1])
    stopped = least_squares(residuals, [1, 1, 1], args=(POINTS, measured()), max_nfev=2)
    assert stopped.status == 0
    assert not stopped.success
    with pytest.raises(ValueError, match="doesn't work when the number of residuals"):
        least_squares(lambda p: p[:1], [1.0, 2.0], method="lm")
    with pytest.raises(ValueError, match="at most 1-d"):
        least_squares(lambda p: p[None] * p[:, None], [1.0, 2.0])
    with pytest.raises(ValueError, match="not finite in the initial point"):
        least_squares(lambda p: jnp.log(p), [-1.0])
    with pytest.raises(TypeError, match=r"jax\.numpy"):
        least_squares(lambda p: np.exp(np.asarray(p)), [1.0])


def many(count, seed=0):
    rng = np.random.default_rng(seed)
    true = np.stack([rng.uniform(1, 3, count), rng.uniform(0.5, 2, count), rng.random(count)], 1)
    ys = true[:, :1] * np.exp(-true[:, 1:2] * POINTS) + true[:, 2:]
    return ys + 0.02 * rng.normal(size=ys.shape)


def test_many_fits_are_as_good_as_each_of_them():
    ys = many(300)
    fits = curve_fit_batch(decay, POINTS, ys)
    assert fits.success.all()
    assert fits.x.shape == (300, 3)
    for i in (0, 77, 150, 299):
        alone = curve_fit(decay, POINTS, ys[i])
        np.testing.assert_allclose(fits.x[i], alone.x, rtol=1e-7)
        np.testing.assert_allclose(fits[1][i], alone[1], rtol=1e-6)
        np.testing.assert_allclose(fits.cost[i], alone.cost, rtol=1e-9)
        np.testing.assert_allclose(fits.perr[i], alone.perr, rtol=1e-6)
    assert "300 fits of 60 points and 3 parameters, 300 converged" in repr(fits)
    assert compilations(lambda: curve_fit_batch(decay, POINTS, ys[:290])) == 0


def test_each_of_many_fits_may_have_its_own_everything():
    ys = many(5)
    xs = np.stack([POINTS * (1 + 0.1 * i) for i in range(5)])
    sigma = 0.1 + np.random.default_rng(1).random((5, 60))
    p0 = np.ones((5, 3)) + 0.1 * np.arange(5)[:, None]
    fits = curve_fit_batch(decay, xs, ys, p0, sigma, bounds=(0, 9), absolute_sigma=True)
    for i in range(5):
        alone = curve_fit(decay, xs[i], ys[i], p0[i], sigma[i], True, bounds=(0, 9))
        np.testing.assert_allclose(fits.x[i], alone.x, rtol=1e-6)
        np.testing.assert_allclose(fits[1][i], alone[1], rtol=1e-5)
    tree = curve_fit_batch(lambda x, p: decay(x, *p["all"]), POINTS, ys, {"all": np.ones(3)})
    assert tree[0]["all"].shape == (5, 3)


def test_x_of_many_fits_can_be_said_to_be_shared():
    x = np.stack([POINTS, POINTS**2])
    ys = np.array([[1.0, 2.0], [3.0, 4.0]]) @ x
    shared = curve_fit_batch(lambda x, a, b: a * x[0] + b * x[1], x, ys, shared_x=True)
    np.testing.assert_allclose(shared.x, [[1, 2], [3, 4]], rtol=1e-9)
    with pytest.raises(ValueError, match="there are 2 fits"):
        curve_fit_batch(lambda x, a: a * x, np.stack([POINTS] * 3), ys, shared_x=False)


def test_many_fits_with_robust_losses_have_the_same_errors():
    ys = many(100)
    options = {"loss": "cauchy", "f_scale": 0.05}
    fits = curve_fit_batch(decay, POINTS, ys, sigma=0.3, **options)
    alone = curve_fit(decay, POINTS, ys[40], sigma=0.3, **options)
    np.testing.assert_allclose(fits.perr[40], alone.perr, rtol=1e-5)
    blocks = curve_fit(decay, [*in_blocks(POINTS, ys[40] / 0.3)], None, jac=None, loss="cauchy")
    whole = curve_fit(decay, POINTS, ys[40] / 0.3, loss="cauchy")
    np.testing.assert_allclose(blocks.perr, whole.perr, rtol=1e-6)


def test_a_fit_that_fails_does_not_stop_the_others():
    ys = many(4)
    ys[1, 7] = np.nan
    with pytest.raises(ValueError, match="infs or NaNs"):
        curve_fit_batch(decay, POINTS, ys)
    fits = curve_fit_batch(decay, POINTS, ys, check_finite=False)
    assert fits.status[1] == -1
    assert fits.success.tolist() == [True, False, True, True]
    assert "not finite" in fits.message[1]
    fits = curve_fit_batch(decay, POINTS, ys, nan_policy="omit")
    kept = np.arange(60) != 7
    alone = curve_fit(decay, POINTS[kept], ys[1][kept])
    np.testing.assert_allclose(fits.x[1], alone.x, rtol=1e-7)
    np.testing.assert_allclose(fits.perr[1], alone.perr, rtol=1e-6)
    ys[2] = np.nan
    fits = curve_fit_batch(decay, POINTS, ys, nan_policy="omit", absolute_sigma=True)
    assert fits.success.tolist() == [True, True, False, True]
    assert "fewer points" in fits.message[2]
    assert np.isinf(fits[1][2]).all()
    few = curve_fit_batch(decay, POINTS, many(4), max_nfev=3)
    assert set(few.status) == {0}
    with pytest.warns(scipy.optimize.OptimizeWarning, match="for 4 of the fits"):
        loose = curve_fit_batch(lambda x, a, b: a * b * x, POINTS, many(4))
    assert np.isinf(loose.perr).all()


def test_many_fits_can_be_watched():
    ys = many(300)
    seen = []
    fits = curve_fit_batch(decay, POINTS, ys, callback=seen.append, history=True)
    assert fits.x.tolist() == curve_fit_batch(decay, POINTS, ys).x.tolist()
    done = fits.history["done"].tolist()
    assert done == sorted(done)
    assert done[-1] == 300
    assert [int(one["done"]) for one in seen] == done
    assert len(spoolax.spool(curve_fit_batch)(decay, POINTS, ys)[1]["done"]) == len(done)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("one row for each fit", {"ydata": np.ones(60)}),
        ("last axis must be that long", {"xdata": np.ones(7)}),
        ("`p0` has shape", {"p0": np.ones((3, 3))}),
        ("a begins at 1, outside", {"p0": np.ones((4, 3)), "bounds": (2, 3)}),
        ("`sigma` has shape", {"sigma": np.ones(3)}),
        ("must be positive", {"sigma": np.full(60, -1.0)}),
    ],
)
def test_mistakes_with_many_fits_are_explained(message, options):
    given = {"f": decay, "xdata": POINTS, "ydata": many(4), **options}
    with pytest.raises(ValueError, match=message):
        curve_fit_batch(**given)


def in_blocks(x, y, size=17):
    for begin in range(0, len(y), size):
        yield x[..., begin : begin + size], y[begin : begin + size]


def test_data_in_blocks_give_the_same_answer(monkeypatch, tmp_path):
    y = measured()
    whole = curve_fit(decay, POINTS, y)

    def same(fit):
        np.testing.assert_allclose(fit.x, whole.x, rtol=1e-8)
        np.testing.assert_allclose(fit[1], whole[1], rtol=1e-6)
        np.testing.assert_allclose(fit.rsquared, whole.rsquared, rtol=1e-9)
        assert fit.points == 60
        return fit

    same(curve_fit(decay, in_blocks(POINTS, y), None))
    same(curve_fit(decay, lambda: in_blocks(POINTS, y), None))
    fit = same(curve_fit(decay, [*in_blocks(POINTS, y)], None, history=True, verbose=1))
    assert fit.history["cost"].tolist()[-1] == fit.cost
    assert len(fit.history["cost"]) == fit.nfev
    with pytest.raises(AttributeError):
        _ = fit.fun
    _, logs = spoolax.spool(curve_fit)(decay, in_blocks(POINTS, y), None)
    assert logs["cost"].tolist() == fit.history["cost"].tolist()

    # Large arrays, in memory or in a file, are gone through in the same way.
    monkeypatch.setattr(data_blocks, "LARGE_BYTES", 1)
    monkeypatch.setattr(data_blocks, "CHUNK", 18)
    same(curve_fit(decay, POINTS, y))
    kept = np.memmap(tmp_path / "y", "f8", "w+", shape=(60,))
    kept[:] = y
    same(curve_fit(decay, POINTS, kept))
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["x"], file["y"] = POINTS, y
        same(curve_fit(decay, file["x"], file["y"]))
    sigma = 0.1 + POINTS
    blocks = curve_fit(decay, POINTS, y, sigma=sigma, bounds=(0, 9))
    holes = np.where(np.arange(60) == 3, np.nan, y)
    omitted = curve_fit(decay, POINTS, holes, nan_policy="omit")
    apart = curve_fit(lambda x, a: a * (x - x.mean()), POINTS, y)
    monkeypatch.undo()
    np.testing.assert_allclose(
        blocks.x, curve_fit(decay, POINTS, y, sigma=sigma, bounds=(0, 9)).x, rtol=1e-8
    )
    expected = curve_fit(decay, POINTS, holes, nan_policy="omit")
    np.testing.assert_allclose(omitted.x, expected.x, rtol=1e-8)
    expected = curve_fit(lambda x, a: a * (x - x.mean()), POINTS, y)
    np.testing.assert_allclose(apart.x, expected.x, rtol=1e-8)


@pytest.mark.parametrize(
    ("error", "message", "blocks"),
    [
        (ValueError, "looks at each point by itself", lambda: in_blocks(POINTS, measured())),
        (ValueError, "must not be empty", iter(())),
        (TypeError, "A block of data is", iter([np.ones(3)])),
        (TypeError, "an iterator over", 3.0),
        (ValueError, "infs or NaNs", iter([(np.ones(3), np.full(3, np.nan))])),
        (ValueError, "must be positive", iter([(np.ones(3), np.ones(3), np.zeros(3))])),
    ],
)
def test_mistakes_with_blocks_are_explained(error, message, blocks):
    model = (lambda x, a: a * (x - x.mean())) if "itself" in message else decay
    with pytest.raises(error, match=message):
        curve_fit(model, blocks, None)


def test_a_callback_can_stop_a_fit_of_blocks():
    seen = []

    def stop(logs):
        seen.append(logs)
        raise spoolax.errors.StopRun("enough")

    with pytest.raises(spoolax.errors.StopRun, match="enough"):
        curve_fit(decay, lambda: in_blocks(POINTS, measured()), None, callback=stop)
    assert len(seen) == 1


def test_blocks_that_come_only_once_are_noticed():
    left = [3]

    def fewer():
        left[0] -= 1
        yield from list(in_blocks(POINTS, measured()))[: 1 + left[0]]

    with pytest.raises(ValueError, match="51 points of data at first, and now there are 34"):
        curve_fit(decay, fewer, None)


def test_data_on_a_mesh_give_the_same_answer():
    x = np.linspace(0, 4, 40000)
    y = measured(x=x)
    mesh = jax.make_mesh((2,), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    with jax.enable_x64(True):
        ys, xs = jax.device_put(y, sharding), jax.device_put(x, sharding)
        with pytest.raises(ValueError, match="infs or NaNs"):
            curve_fit(decay, xs, jax.device_put(np.where(x == x[3], np.nan, y), sharding))
    alone = curve_fit(decay, x, y, sigma=1 + x)
    for some in (xs, x):
        fit = curve_fit(decay, some, ys, sigma=1 + x, history=True)
        np.testing.assert_allclose(fit.x, alone.x, rtol=1e-9)
        np.testing.assert_allclose(fit[1], alone[1], rtol=1e-6)
        assert len(fit.history["cost"]) == fit.nfev


def test_a_fit_runs_where_its_data_are():
    used = []

    def model(x, a):
        used.append(jax.config.jax_default_device)
        return a * x

    other = jax.devices()[1]
    curve_fit(model, jax.device_put(np.ones(8), other), np.ones(8))
    assert set(used) == {other}
    used.clear()
    with jax.default_device(other):
        assert curve_fit(lambda x, a: model(x, a), np.ones(8), np.ones(8)).x[0] == 1
    assert set(used) == {other}


@pytest.fixture
def cache_of_its_own(monkeypatch, tmp_path):
    """Nothing is on disk yet, and `XDG_CACHE_HOME` says where that is."""
    monkeypatch.undo()
    monkeypatch.delenv(cache.DISABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.usefixtures("cache_of_its_own")
def test_a_program_is_found_on_disk_again(monkeypatch, tmp_path):
    x = np.arange(4.0)

    def fitted():
        programs._programs.clear()
        fit = curve_fit(lambda x, a: a * x + 0.125, x, 2 * x + 0.125)
        np.testing.assert_allclose(fit.x, [2])

    assert compilations(fitted) == 1
    (file,) = spoolax.fit.cache_dir().glob("*.xla")
    assert file.parent == tmp_path / "spoolax" / "jax_cache"
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert compilations(fitted) == 0
    file.write_bytes(file.read_bytes()[:-7])
    assert compilations(fitted) == 1
    assert compilations(fitted) == 0, "as it was written anew"
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert compilations(fitted) == 1, "and it does not stop the fit"


@pytest.mark.usefixtures("cache_of_its_own")
def test_only_whole_files_that_nobody_else_could_write_are_used(monkeypatch, tmp_path):
    """With a program that compiles faster than a fit."""

    def ran():
        program = cache.compiled(jax.jit(lambda x: 2 * x), (np.ones(3, np.float32),))
        assert program(np.ones(3, np.float32)).tolist() == [2, 2, 2]

    assert compilations(ran) == 1
    assert compilations(ran) == 0
    (file,) = spoolax.fit.cache_dir().glob("*.xla")
    content = file.read_bytes()
    for damage in (b"", content[:-7], content[:99] + b"\0" + content[100:], b"nonsense"):
        file.write_bytes(damage)
        assert compilations(ran) == 1
        assert compilations(ran) == 0, "as it was written anew"
    file.parent.chmod(0o777)  # Somebody else might have put something there.
    assert compilations(ran) == 1
    file.parent.chmod(0o700)
    assert compilations(ran) == 0
    monkeypatch.setenv(cache.DISABLE, "1")
    assert compilations(ran) == 1
    monkeypatch.delenv(cache.DISABLE)
    spoolax.fit.clear_cache()
    assert not file.exists()
    for home in ("/dev/null", str(tmp_path / "no" / "such"), "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", home)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert compilations(ran) in (0, 1)


SECOND = """
import json, jax, jax.numpy as jnp, numpy as np
found = []
jax.monitoring.register_event_duration_secs_listener(lambda event, *a, **k: found.append(event))
from spoolax.fit import curve_fit
x = np.linspace(0, 4, 50)
fit = curve_fit(lambda x, a, b: a * jnp.exp(-b * x), x, 2 * np.exp(-x))
print(json.dumps([fit.x.tolist(), found.count("/jax/core/compile/backend_compile_duration")]))
"""


def test_a_second_process_need_not_compile(tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), cache.DISABLE: "0"}
    out = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", SECOND], env=env, check=True, capture_output=True
            ).stdout
        )
        for _ in range(2)
    ]
    assert out[0][0] == out[1][0], "to the bit"
    assert (out[0][1], out[1][1]) == (1, 0)


def test_a_file_is_fitted_and_drawn(tmp_path):
    path = tmp_path / "data.csv"
    lines = [f"{x}; {y}; 0.1" for x, y in zip(POINTS, measured(), strict=True)]
    path.write_text("# measured\nt; signal; error\n" + "\n".join([*lines, ""]))
    picture = tmp_path / "fit.png"
    options = {"sigma": "error", "p0": {"c": 1, "a": 1, "b": 1}, "plot": picture}
    fit = fit_file(path, "a*exp(-b*x) + c", "t", "signal", **options)
    np.testing.assert_allclose(fit.x, curve_fit(decay, POINTS, measured()).x, rtol=1e-6)
    assert fit.names == ("a", "b", "c")
    assert picture.read_bytes().startswith(b"\x89PNG")
    two = fit_file(path, "k*t + l*error", ["t", "error"], "signal")
    assert two.names == ("k", "l")
    for model, message in (
        ("a*x.real", "is not possible"),
        ("a*open(x)", "is not possible"),
        ("a*x +", "not an expression"),
        ("a + b", "does not depend on"),
        ("2*x", "no parameters"),
    ):
        with pytest.raises(ValueError, match=message):
            fit_file(path, model, "t", "signal")
    for model in ("a*x + 0*9**9**9", "a*x + 1/0", "-" * 5000 + "a*x", "a*exp(x, 2, 3)"):
        with pytest.raises(ValueError, match=r"fails|not an expression"):
            fit_file(path, model, "t", "signal")
    path.write_bytes("t; signal; grö\n1; 2; 3\n2; 4; 3\n; 3; 1\n1_0; 2; 2".encode("latin-1"))
    with pytest.warns(UserWarning, match="2 of 4 lines"):
        assert round(float(fit_file(path, "a*x", "t", "signal").x[0]), 6) == 2
    with pytest.raises(ValueError, match="no column 'u'"):
        fit_file(path, "a*x", "u", "signal")


@pytest.mark.parametrize(
    ("text", "y"),
    [
        ('t,"a, b",c\n1,"2",0\n2, 4,0,9,9\n3\n', "a, b"),
        ("\ufefft \t y\n1\t2\n\n# a comment\n2\t4\t\n,\t\n", "y"),
        (" t   y #2  y\n 1   2\n2\t4 9\n\n3\n", "y"),
    ],
    ids=["quoted names, lines too long and too short", "a mark, tabs and comments", "blanks"],
)
def test_tables_may_be_untidy(tmp_path, text, y):
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.warns(UserWarning, match=f"1 of 3 lines of {path} lack a number .* t, {y},"):
        fit = fit_file(path, "a*x", "t", y)
    assert fit.points == 2
    np.testing.assert_allclose(fit.x, [2])


def test_a_table_without_data_or_without_pandas_is_explained(tmp_path, monkeypatch):
    path = tmp_path / "data.csv"
    for text, message in (
        ("\n# nothing\n", f"nothing in {path}"),
        ("x,y\n", f"no numbers in the columns x, y of {path}"),
        ("x,y\n1\n2\n", f"no numbers in the columns x, y of {path}"),
        ("x,z\n1,2\n", f"no column 'y' in {path}. Its columns are x, z"),
    ):
        path.write_text(text)
        with (
            pytest.raises(ValueError, match=message),
            pytest.warns(UserWarning, match="2 of 2") if "1\n" in text else nullcontext(),
        ):
            fit_file(path, "a*x")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(spoolax.errors.MissingExtraError, match="`fit_file` needs pandas"):
        fit_file(path, "a*x")
