"""Fits of one curve: the answers of SciPy, all kinds of data and models, and who listens."""

import dataclasses
import functools
import math
import pickle
import re
import types
import typing
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pandas
import pytest
import scipy.optimize
from fit_cases import POINTS, by_numpy, compilations, decay, measured
from hypothesis import given, settings
from hypothesis import strategies as st

import spoolax
from spoolax import loggers
from spoolax.fit import curve_fit, least_squares, solve
from spoolax.fit._data import points
from spoolax.fit._model.identity import identity
from spoolax.fit._model.pointwise import is_pointwise


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "trf"},
        {"sigma": 0.1 + POINTS},
        {"sigma": 0.1 + POINTS, "absolute_sigma": True},
        {"sigma": np.diag((0.1 + POINTS) ** 2) + 0.001},
        {"sigma": 0.3, "absolute_sigma": True},
        {"bounds": ([0, 0, 0], [3, 1, 1])},
        {"bounds": (0, np.inf)},
        {"bounds": scipy.optimize.Bounds([2.6, -np.inf, 0.0], [4.0, 1.2, 0.4])},
        {"method": "trf", "loss": "soft_l1", "f_scale": 0.1},
        {"method": "trf", "loss": "huber", "f_scale": 0.1},
        {"method": "trf", "loss": "cauchy", "f_scale": 0.1},
        {"method": "trf", "loss": "arctan", "f_scale": 0.3},
        {"method": "trf", "x_scale": [1.0, 2.0, 3.0]},
        {"p0": [2, 1, 1]},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_the_answers_are_those_of_scipy(options):
    y = measured()
    mine = curve_fit(decay, POINTS, y, **options)
    theirs = scipy.optimize.curve_fit(by_numpy, POINTS, y, **options)
    np.testing.assert_allclose(mine[0], theirs[0], rtol=2e-5)
    np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-3, atol=1e-9)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.tuples(*[st.floats(0.3, 3)] * 3),
    st.integers(0, 10**6),
    st.sampled_from([None, "below", "above"]),
)
def test_the_answers_are_those_of_scipy_for_many_problems(true, seed, active):
    x = np.linspace(0, 3, 60)
    y = by_numpy(x, *true) + 0.02 * np.random.default_rng(seed).normal(size=60)
    bounds = {
        None: ([0, 0, -1], [9, 9, 9]),
        "below": ([0, 0, true[2] + 0.1], [9, 9, 9]),
        "above": ([0, 0, -1], [true[0] - 0.1, 9, 9]),
    }[active]
    start = np.clip(np.ones(3), np.array(bounds[0]) + 0.05, np.array(bounds[1]) - 0.05)
    mine = curve_fit(decay, x, y, start, bounds=bounds)
    options = {"ftol": 1e-14, "xtol": 1e-14, "gtol": 1e-14}
    theirs = scipy.optimize.least_squares(
        lambda p: by_numpy(x, *p) - y, start, bounds=bounds, **options
    )
    # There may be several minima, so what counts is how good it is.
    assert mine.cost <= theirs.cost * (1 + 1e-6) + 1e-12


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.tuples(*[st.floats(0.5, 2)] * 3),
    st.integers(0, 10**6),
    st.sampled_from([None, "errors", "matrix"]),
    st.booleans(),
    st.sampled_from(["linear", "cauchy"]),
)
def test_errors_are_those_of_scipy_for_many_problems(true, seed, kind, absolute, loss):
    rng, x = np.random.default_rng(seed), np.linspace(0, 5, 60)
    y = by_numpy(x, *true) + 0.02 * rng.normal(size=60)
    errors = rng.uniform(0.01, 0.03, 60)
    mixed = rng.normal(size=(60, 60)) * 0.002
    sigma = {None: None, "errors": errors, "matrix": np.diag(errors**2) + mixed @ mixed.T}[kind]
    options = {"sigma": sigma, "absolute_sigma": absolute, "loss": loss, "method": "trf"}
    mine = curve_fit(decay, x, y, true, **options)
    theirs = scipy.optimize.curve_fit(by_numpy, x, y, true, **options, ftol=1e-11, xtol=1e-11)
    np.testing.assert_allclose(mine.x, theirs[0], rtol=1e-4, atol=1e-5)
    # Of robust losses, the errors jump where a residual passes the scale.
    np.testing.assert_allclose(mine[1], theirs[1], rtol=2e-3 if loss == "linear" else 2e-2)


def test_a_result_is_a_pair_that_knows_more():
    fit = curve_fit(decay, POINTS, measured())
    popt, pcov = fit
    assert len(fit) == 2
    assert isinstance(fit, tuple)
    assert isinstance(popt, np.ndarray)
    assert popt.dtype == pcov.dtype == np.float64
    assert fit.success
    assert 1 <= fit.nit < fit.nfev
    assert 0.9 < fit.rsquared < 1
    np.testing.assert_allclose(fit.perr, np.sqrt(np.diag(pcov)))
    assert fit.message in repr(fit)
    assert fit["cost"] == fit.cost
    again = pickle.loads(pickle.dumps(fit))
    assert again.x.tolist() == fit.x.tolist()
    assert repr(again) == repr(fit)
    five = curve_fit(decay, POINTS, measured(), full_output=True)
    theirs = scipy.optimize.curve_fit(by_numpy, POINTS, measured(), full_output=True)
    assert len(five) == 5
    assert five[4] in (1, 2, 3, 4)
    np.testing.assert_allclose(five[2]["fvec"], theirs[2]["fvec"], rtol=1e-4)


@pytest.mark.parametrize("loss", ["linear", "huber", lambda z: jnp.log1p(z)])
def test_residuals_and_jacobian_are_those_of_scipy(loss):
    y = measured()
    fit = curve_fit(decay, POINTS, y, loss=loss, f_scale=0.05)
    theirs = scipy.optimize.least_squares(
        lambda p: by_numpy(POINTS, *p) - y,
        fit.x,
        jac=lambda p: np.asarray(slopes(POINTS, *p)),
        loss="cauchy" if callable(loss) else loss,
        f_scale=0.05,
        max_nfev=1,
    )
    np.testing.assert_allclose(fit.fun, theirs.fun, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(fit.jac, theirs.jac, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(fit.cost, theirs.cost, rtol=1e-9)
    np.testing.assert_allclose(
        fit.grad, fit.jac.T @ fit.fun if loss == "linear" else theirs.grad, atol=1e-6
    )


def test_data_and_parameters_of_all_kinds():
    y, expected = measured(), curve_fit(decay, POINTS, measured()).x

    def same(fit):
        np.testing.assert_allclose(fit.x, expected, rtol=1e-6)
        return fit

    same(curve_fit(decay, list(POINTS), list(y)))
    same(curve_fit(decay, jnp.asarray(POINTS), y, p0=(1, 1, 1)))
    found = same(
        curve_fit(
            lambda x, p: p["a"] * jnp.exp(-p["b"] * x) + p["c"], POINTS, y, {"a": 1, "b": 1, "c": 1}
        )
    )
    assert found[0]["b"] == found.x[1]
    assert same(curve_fit(of_tree, POINTS, y, Rates(1.0, 1.0, 1.0)))[0].b == found.x[1]
    bounds = Rates(0.0, 0.0, 0.0), Rates(9.0, 9.0, 9.0)
    backwards = curve_fit(of_tree, POINTS, y, Backwards(1.0, 1.0, 1.0), bounds=(0, [9, 8, 7]))
    assert backwards.names == ("c", "b", "a"), "in the order of the fields"
    np.testing.assert_allclose(backwards.x[::-1], expected, rtol=1e-6)
    same(curve_fit(of_tree, POINTS, y, Rates(1.0, 1.0, 1.0), bounds=bounds))
    assert same(curve_fit(of_tree, POINTS, y, Named(1.0, 1.0, 1.0)))[0].b == found.x[1]
    packed = same(curve_fit(lambda x, p: decay(x, *p["all"]), POINTS, y, {"all": np.ones(3)}))
    assert packed.names == ("all/0", "all/1", "all/2")
    assert packed[0]["all"].shape == (3,)
    same(curve_fit(decay, pandas.Series(POINTS), pandas.Series(y)))
    table = pandas.DataFrame({"t": POINTS, "u": POINTS})
    same(curve_fit(lambda x, a, b, c: decay(x["t"], a, b, c), table, pandas.Series(y)))
    two = np.stack([POINTS, POINTS])
    same(curve_fit(lambda x, a, b, c: a * jnp.exp(-b * x[0]) + c + 0 * x[1], two, y))
    same(curve_fit(lambda x, a, b, c: a * jnp.exp(-b * x["t"]) + c, {"t": POINTS}, y))
    whole = np.arange(20)
    line = curve_fit(lambda x, a, b: a * x + b, whole, 3 * whole + 1)
    np.testing.assert_allclose(line.x, [3, 1], rtol=1e-9)
    np.testing.assert_allclose(curve_fit(decay, POINTS, y, jac=slopes).x, expected, rtol=1e-6)


@dataclasses.dataclass
class Rates:
    a: float
    b: float
    c: float


@dataclasses.dataclass
class Backwards:
    c: float
    b: float
    a: float


class Named(typing.NamedTuple):
    a: float
    b: float
    c: float


def of_tree(x, p):
    return decay(x, p.a, p.b, p.c)


def slopes(x, a, b, c):
    e = jnp.exp(-b * x)
    return jnp.stack([e, -a * x * e, jnp.ones_like(x)], 1)


def smooth(x):
    return jnp.convolve(x, jnp.ones(3, x.dtype) / 3, mode="same")


SEVERAL = {
    "mean": lambda x: x - jnp.mean(x),
    "first": lambda x: x - x[0],
    "length": lambda x: x / len(x),
    "power": lambda x: x ** (len(x) // len(x) + 1) / len(x),
    "backwards": lambda x: x[::-1],
    "count": lambda x: x + jnp.sum(jnp.arange(x.size, dtype=x.dtype)),
    "constant": lambda x: x + np.linspace(0, 1, len(x)).sum(),
    "place": lambda x: x * jnp.linspace(0, 1, len(x)),
    "sort": jnp.sort,
    "cumsum": jnp.cumsum,
    "smooth": smooth,
    "scan": lambda x: jax.lax.scan(lambda c, x: (c + x, c), x[0], x)[1],
}


def test_models_that_look_at_several_points_are_not_taken_for_others():
    for name, seen in SEVERAL.items():
        with jax.enable_x64(True):
            assert not is_pointwise(lambda x, p: p[0] * seen(x), POINTS, np.ones(1)), name


@pytest.mark.parametrize("name", ["first", "length"])
def test_models_that_look_at_several_points_get_them_as_they_are(name, monkeypatch):
    """Neither padding nor blocks change an answer, whatever the first data looked like."""
    monkeypatch.setattr(points, "BLOCK", 32)

    def model(x, a, b):
        return a * SEVERAL[name](x) + b

    for x in (np.linspace(1, 3, 17), 2 - np.cos(np.linspace(0, 9, 64))):
        with jax.enable_x64(True):
            y = np.asarray(model(jnp.asarray(x), 2.0, 1.0))
        fit = curve_fit(model, x, y, [1.0, 0.5])
        np.testing.assert_allclose(fit.x, [2, 1], rtol=1e-6)
    with pytest.raises(ValueError, match="pointwise=True"):
        curve_fit(model, iter([(x, y)]), None)


@pytest.mark.parametrize(
    "model",
    [
        decay,
        jax.jit(decay),
        lambda x, a, b, c: jnp.where(x > 2, a * x, b) + c * jax.nn.sigmoid(x),
        lambda x, a, b, c: jnp.polyval(jnp.array([a, b, c]), x),
        lambda x, a, b, c: a + b + c,
        lambda x, a, b, c: jnp.stack([a, b]) @ jnp.stack([x, x**2]) + c,
    ],
)
def test_models_that_look_at_each_point_are_known(model):
    with jax.enable_x64(True):
        assert is_pointwise(
            lambda x, p: jnp.broadcast_to(model(x, *p), x.shape), POINTS, np.ones(3)
        )


def test_rows_of_x_may_be_taken_apart():
    def model(x, p):
        u, v = x
        return p[0] * u + p[1] * x[1] * jnp.split(x, 2)[0][0] + jnp.sum(x, 0) * v

    with jax.enable_x64(True):
        assert is_pointwise(model, np.stack([POINTS, POINTS]), np.ones(2))


def test_small_numbers_are_fitted_as_well_as_others():
    x = np.linspace(0, 1, 30)
    fit = curve_fit(lambda x, a, b: a * jnp.exp(-b * x), x, 3e-12 * np.exp(-2 * x), [1e-12, 1])
    np.testing.assert_allclose(fit.x, [3e-12, 2], rtol=1e-6)


def test_what_the_data_do_not_determine_is_named():
    with pytest.warns(scipy.optimize.OptimizeWarning, match="do not determine a, b"):
        fit = curve_fit(lambda x, a, b, c: a * b * x + c, POINTS, measured())
    assert np.isinf(fit.perr).all()
    with pytest.warns(scipy.optimize.OptimizeWarning, match="do not determine b"):
        curve_fit(lambda x, a, b: a * x + 0 * b, POINTS, measured())


def test_a_new_length_is_no_new_program_and_neither_is_an_equal_model():
    def fitted(n):
        x = np.linspace(0, 4, n)
        return curve_fit(lambda x, a, b, c: a * jnp.exp(-b * x) + c, x, measured(x=x))

    fitted(60)
    fitted(50)
    assert compilations(lambda: [fitted(n) for n in (57, 61, 60, 49, 56, 64)]) == 0


def test_a_loss_of_the_users_is_compiled_once():
    def fitted():
        return curve_fit(decay, POINTS, measured(), loss=lambda z: jnp.log1p(z), f_scale=0.1)

    fitted()
    assert compilations(fitted) == 0


SCALE = 1.0


def test_what_a_model_sees_is_not_forgotten():
    global SCALE
    grid = np.ones(3)

    def model(x, a):
        return a * SCALE * grid[0] * x

    def found():
        return round(float(curve_fit(model, POINTS, 6 * POINTS).x[0]), 6)

    assert found() == 6
    SCALE = 2.0
    assert found() == 3
    grid[0] = 3.0
    assert found() == 1
    SCALE = 1.0


class Power:
    k = 1.0

    def __call__(self, x, a):
        return a * x**self.k

    def method(self, x, a):
        return a * x**self.k


def test_attributes_that_a_model_sees_are_not_forgotten():
    power, settings = Power(), types.SimpleNamespace(k=1.0)

    def found(model):
        return round(float(curve_fit(model, POINTS[1:], 6 * POINTS[1:] ** 2).x[0]), 6)

    def by_settings(x, a):
        return a * x**settings.k

    models = (power, power.method, by_settings, functools.partial(by_settings))
    before = [found(model) for model in models]
    power.k = settings.k = 2.0
    assert [found(model) for model in models] == [6.0] * 4 != before
    del power.k
    Power.k = 2.0
    assert found(power) == 6
    Power.k = 1.0
    assert found(power) == before[0]


def test_what_is_too_large_to_look_into_counts_as_itself():
    chain = None
    for _ in range(20000):
        chain = [chain]
    deep = types.SimpleNamespace(chain=chain)
    assert identity(deep) == identity(deep)
    assert identity(deep) != identity(types.SimpleNamespace(chain=chain))
    table = pandas.DataFrame({"a": [1.0, 2.0]})
    before = identity(table)
    assert before == identity(table.copy())
    table.loc[0, "a"] = 3.0
    assert before != identity(table)


def test_an_older_equal_model_that_changed_is_not_traced():
    def made(k):
        def model(x, a):
            return a * k * x

        def change(new):
            nonlocal k
            k = new

        return model, change

    first, change = made(2.0)
    curve_fit(first, POINTS, 6 * POINTS)
    change(3.0)
    second, _ = made(2.0)
    longer = np.linspace(0, 4, 500)  # Traced anew.
    assert round(float(curve_fit(second, longer, 6 * longer).x[0]), 6) == 3


def test_robust_losses_do_not_stop_early():
    x = np.linspace(0, 4, 30)
    y = 2 * x + 1
    y[5] += 1000
    y[9] -= 300
    fit = curve_fit(lambda x, a, b: a * x + b, x, y, [-500, 900], loss="huber", f_scale=0.01)
    theirs = scipy.optimize.least_squares(
        lambda p: p[0] * x + p[1] - y, [2, 1], loss="huber", f_scale=0.01, xtol=1e-12, ftol=1e-12
    )
    np.testing.assert_allclose(fit.x, theirs.x, rtol=1e-6)


def test_loose_tolerances_save_evaluations():
    tight = curve_fit(decay, POINTS, measured())
    loose = curve_fit(decay, POINTS, measured(), ftol=1e-3, xtol=1e-3, gtol=1e-3)
    assert loose.nfev < tight.nfev - 1


def test_derivatives_are_forward_or_in_reverse_by_the_dimensions(monkeypatch):
    called = []
    for name in ("jvp", "vjp"):
        original = getattr(jax, name)

        def counted(*args, name=name, original=original, **kwargs):
            called.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(jax, name, counted)
    solve(lambda p: jnp.stack([p[0] - 1, p[1] - 2, p[0]]), jnp.ones(2))
    assert set(called) == {"jvp"}
    called.clear()
    solve(lambda p: jnp.stack([p[0] - 1]), jnp.ones(2))
    assert set(called) == {"vjp"}


def test_the_settings_of_jax_are_left_alone():
    assert jnp.ones(1).dtype == jnp.float32
    curve_fit(decay, POINTS, measured())
    assert jnp.ones(1).dtype == jnp.float32
    with pytest.raises(ZeroDivisionError):
        curve_fit(lambda x, a: a * x * (1 / 0), POINTS, measured())
    assert jnp.ones(1).dtype == jnp.float32
    single = curve_fit(decay, POINTS, measured(), dtype=np.float32)
    assert single.x.dtype == np.float32
    np.testing.assert_allclose(single.x, curve_fit(decay, POINTS, measured()).x, rtol=1e-3)


def test_iterations_can_be_watched(capsys, tmp_path):
    y = measured()
    silent = curve_fit(decay, POINTS, y)
    seen = []
    fit = curve_fit(decay, POINTS, y, verbose=2, callback=seen.append, history=True)
    assert fit.x.tolist() == silent.x.tolist(), "to the bit"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["iteration", "cost", "reduction", "step", "norm", "optimality"]
    assert len(lines) - 1 == len(seen) == fit.nfev
    assert fit.history["cost"].tolist() == [float(one["cost"]) for one in seen]
    assert fit.history["cost"][-1] == fit.cost
    assert (np.diff(fit.history["cost"]) <= 0).all()
    path = tmp_path / "fit.jsonl"
    with loggers.JsonlLogger(path) as logger:
        curve_fit(decay, POINTS, y, logger=logger)
    assert len(list(loggers.read_jsonl(path))) == len(seen)
    curve_fit(decay, POINTS, y, verbose=1)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[-1].split()[0] == str(fit.nit)


def test_spool_and_tap_go_around_the_programs_of_a_fit(tmp_path):
    y = measured()
    fit, logs = spoolax.spool(curve_fit)(decay, POINTS, y)
    assert fit.x.tolist() == curve_fit(decay, POINTS, y).x.tolist(), "to the bit"
    assert logs["cost"].dtype == np.float64
    # XLA compiles loops that call the host otherwise, so on some CPUs a history, which comes by way
    # of a tap, has other last bits (`small-while-loop-hoisting`, in docs/spool.md).
    history = curve_fit(decay, POINTS, y, history=True).history
    np.testing.assert_allclose(logs["cost"], history["cost"], rtol=1e-13)
    _, last = spoolax.spool(curve_fit, argnames="cost", reduce="last")(decay, POINTS, y)
    assert float(last["cost"]) == fit.cost
    seen = []
    spoolax.tap(least_squares, seen.append)(lambda p: p - jnp.arange(2.0), [5.0, 5.0])
    spoolax.flush()
    assert [int(one["nfev"]) for one in seen] == [*range(1, len(seen) + 1)]
    with loggers.JsonlLogger(tmp_path / "fit.jsonl") as logger:
        logger.tap(curve_fit)(decay, POINTS, y)
    assert len(list(loggers.read_jsonl(tmp_path / "fit.jsonl"))) == fit.nfev
    for around in (jax.jit, spoolax.spool, jax.vmap):
        with pytest.raises(TypeError, match=r"spoolax\.fit\.solve"):
            around(lambda y: curve_fit(decay, POINTS, y)[0])(np.stack([y, y]))


def test_models_may_log_and_do_so_once_per_evaluation(capsys):
    def model(x, a, b, c):
        spoolax.log({"a": a})
        return decay(x, a, b, c)

    fit = curve_fit(model, POINTS, measured(), history=True)
    assert len(fit.history["a"]) == len(fit.history["cost"]) == fit.nfev
    assert fit.history["a"][0] == 1
    curve_fit(model, POINTS, measured(), verbose=2)
    assert len(capsys.readouterr().out.splitlines()) == fit.nfev + 1


def test_a_callback_that_raises_does_not_keep_entries_from_others(tmp_path):
    y = measured()

    def broken(logs):
        raise ValueError("broken")

    with (
        loggers.JsonlLogger(tmp_path / "fit.jsonl") as logger,
        pytest.raises(ValueError, match="broken"),
    ):
        curve_fit(decay, POINTS, y, callback=broken, logger=logger)
    lines = list(loggers.read_jsonl(tmp_path / "fit.jsonl"))
    assert len(lines) == curve_fit(decay, POINTS, y).nfev


def test_the_solver_can_be_batched_and_spooled():
    x = jnp.linspace(0, 2, 40)

    def fit(y, start):
        return solve(lambda p: p[0] * jnp.exp(-p[1] * x) - y, start)

    rates = jnp.array([0.5, 1.0, 2.0])
    ys = 2 * jnp.exp(-rates[:, None] * x[None])
    many = jax.jit(jax.vmap(fit, (0, None)))(ys, jnp.ones(2))
    np.testing.assert_allclose(many.x, jnp.stack([2 * jnp.ones(3), rates], 1), rtol=1e-3)
    assert many.success.all()
    alone, logs = spoolax.spool(fit)(ys[1], jnp.ones(2))
    np.testing.assert_allclose(alone.x, many.x[1], rtol=1e-4)
    assert len(logs["cost"]) == int(alone.nfev)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("(lower, upper)", {"bounds": (0, 1, 2)}),
        ("`jac='exact'`", {"jac": "exact"}),
        ("`x_scale='auto'`", {"x_scale": "auto"}),
        ("`loss='square'`", {"loss": "square"}),
        ("one row of numbers", {"x0": np.ones((2, 2))}),
    ],
)
def test_mistakes_with_the_solver_are_explained(message, options):
    with pytest.raises(ValueError, match=re.escape(message)):
        solve(**{"fun": lambda p: p, "x0": jnp.ones(2), **options})


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (ValueError, "`x0` is infeasible", {"p0": [1, 1, 5], "bounds": ([0, 0, 0], [2, 2, 2])}),
        (ValueError, "strictly less", {"bounds": ([0, 3, 0], [2, 2, 2])}),
        (ValueError, "Inconsistent shapes", {"bounds": ([0, 3], [2, 2])}),
        (ValueError, "'lm' only works", {"method": "lm", "bounds": (0, 1)}),
        (ValueError, "`method='dogbox'`", {"method": "dogbox"}),
        (ValueError, "`loss='square'`", {"loss": "square"}),
        (ValueError, "must be positive", {"sigma": np.zeros(60)}),
        (ValueError, "incorrect shape", {"sigma": np.ones(7)}),
        (ValueError, "positive definite", {"sigma": -np.eye(60)}),
        (ValueError, "infs or NaNs", {"ydata": np.full(60, np.nan)}),
        (ValueError, "infs or NaNs", {"xdata": np.full(60, np.inf)}),
        (ValueError, "last axis must be that long", {"ydata": np.ones(7)}),
        (ValueError, "must not be empty", {"xdata": [], "ydata": []}),
        (TypeError, "arrays of numbers", {"ydata": ["a"] * 60}),
        (TypeError, "must not exceed", {"xdata": [1, 2], "ydata": [1, 2]}),
        (TypeError, "unexpected keyword", {"maxfev": 3}),
        (TypeError, "jax.numpy", {"f": by_numpy}),
        (TypeError, "jax.numpy.where", {"f": lambda x, a: a * x if x[0] > 0 else x}),
        (ValueError, "returns an array of shape", {"f": lambda x, a: a * x[:3]}),
        (ValueError, "not finite in the initial point", {"f": lambda x, a: a / x * jnp.inf}),
        (ValueError, "any number of parameters", {"f": lambda x, *p: x}),
        (ValueError, "f(x, a, b, ...)", {"f": lambda x: x}),
        (RuntimeError, "Optimal parameters not found", {"max_nfev": 2}),
        (ValueError, "`nan_policy='maybe'`", {"nan_policy": "maybe"}),
        (ValueError, "`verbose` must be 0, 1 or 2", {"verbose": 3}),
        (ValueError, "`jac='exact'`", {"jac": "exact"}),
        (ValueError, "`x_scale='auto'`", {"x_scale": "auto"}),
        (ValueError, "positive numbers", {"x_scale": [0, 1, 1]}),
        (ValueError, "`max_nfev` must be", {"max_nfev": 0}),
        (ValueError, "`p0` must be finite", {"p0": [1, np.nan, 1]}),
        (TypeError, "`p0` must be made of numbers", {"p0": ["a", "b", "c"]}),
        (TypeError, "`p0` must be numbers", {"p0": "abc"}),
        (TypeError, "float64 or float32", {"dtype": np.int32}),
        (TypeError, "Use `max_nfev`", {"maxfev": 3}),
        (TypeError, "of `math`", {"f": lambda x, a: a * math.exp(x)}),
        (TypeError, "`jax.numpy.where`", {"f": lambda x, a: a * x[x > a]}),
        (TypeError, "takes 3 parameters after x", {"p0": [1, 1]}),
        (TypeError, "`p0={'p': [...]}`", {"f": lambda x, p: p[0] * x, "p0": np.ones(2)}),
        (TypeError, "one argument", {"p0": {"a": 1.0}}),
        (TypeError, "`return` missing", {"f": lambda x, a: None}),
        (TypeError, "must be a function of x", {"f": None}),
        (ValueError, "b begins at 7", {"p0": [1, 7, 1], "bounds": (0, 2)}),
        (ValueError, "(lower, upper)", {"bounds": [(0, 1)] * 3}),
        (ValueError, "`jac` returns", {"jac": lambda x, a, b, c: jnp.ones((3, 60))}),
        (ValueError, "`f_scale` must be", {"f_scale": 0.0}),
        (TypeError, "`ftol` must be numeric", {"ftol": "a"}),
        (
            TypeError,
            "with `jax.numpy`, not with `numpy`",
            {"loss": lambda z: np.log1p(np.asarray(z))},
        ),
        (ValueError, "The loss of an array", {"loss": lambda z: jnp.stack([z, z, z])}),
        (TypeError, "complex", {"f": lambda x, a: jax.lax.complex(a * x, x)}),
        (TypeError, "`logger` must be a logger", {"logger": print}),
    ],
)
def test_mistakes_are_explained(error, message, options):
    given = {"f": decay, "xdata": POINTS, "ydata": measured(), **options}
    with pytest.raises(error) as caught:
        curve_fit(**given)
    assert message in str(caught.value)


def test_points_that_are_not_a_number_can_be_left_out():
    y = measured()
    y[3] = np.nan
    kept = np.arange(60) != 3
    expected = curve_fit(decay, POINTS[kept], y[kept])
    found = curve_fit(decay, POINTS, y, nan_policy="omit", sigma=np.ones(60))
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-9)


def test_many_points_are_gone_through_in_blocks():
    x = np.linspace(0, 4, 50000)
    y = measured(x=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = curve_fit(decay, x, y)
    popt, pcov = scipy.optimize.curve_fit(by_numpy, x, y)
    np.testing.assert_allclose(fit.x, popt, rtol=1e-6)
    np.testing.assert_allclose(fit[1], pcov, rtol=1e-4)
