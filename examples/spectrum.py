"""Two overlapping peaks on a sloping background, with some outliers: a fit in full view.

It prints the iterations while it runs, and fits a thousand more spectra at once. Given a directory,
it also plots the results: `python examples/spectrum.py pictures`.
"""

import pathlib
import sys

import jax.numpy as jnp
import numpy as np

from spoolax.fit import curve_fit, curve_fit_batch

TRUE = {"height": (3.0, 2.0), "centre": (4.0, 5.2), "width": (0.5, 0.7), "base": (0.5, 0.1)}
START = {"height": (2.0, 2.0), "centre": (3.8, 5.5), "width": (0.6, 0.6), "base": (1.0, 0.0)}
TRUE, START = ({name: np.array(two) for name, two in p.items()} for p in (TRUE, START))
NOISE = 0.1


def spectrum(x, p):
    """Gaussian peaks on a straight line."""
    height, centre, width, base = (p[name] for name in ("height", "centre", "width", "base"))
    peaks = [height[i] * jnp.exp(-0.5 * ((x - centre[i]) / width[i]) ** 2) for i in (0, 1)]
    return sum(peaks) + base[0] + base[1] * x


def measured(count, seed=0):
    """Spectra with noise, and an outlier in one of twenty points."""
    rng, x = np.random.default_rng(seed), np.linspace(0, 10, 200)
    clean = np.asarray(spectrum(x, TRUE))
    noise = NOISE * rng.normal(size=(count, len(x)))
    return x, clean + noise + 2 * rng.random((count, len(x))) * (rng.random((count, len(x))) < 0.05)


def draw(directory, x, y, fit, plain):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(x, y, ".", color="#999999", ms=4, label="measured")
    axes.plot(x, spectrum(x, TRUE), color="black", lw=1, label="true")
    axes.plot(x, spectrum(x, plain[0]), color="#ee7733", lw=1.5, label="loss='linear'")
    axes.plot(x, spectrum(x, fit[0]), color="#0077bb", lw=1.5, label="loss='soft_l1'")
    axes.legend(frameon=False)
    figure.savefig(directory / "spectrum.png", dpi=100)

    figure = Figure(figsize=(7, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.semilogy(fit.history["cost"], "o-", ms=3, color="#0077bb")
    left.set_ylabel("cost")
    right.semilogy(fit.history["optimality"], "o-", ms=3, color="#cc3311")
    right.set_ylabel("optimality")
    for axes in (left, right):
        axes.set_xlabel("evaluation")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(directory / "iterations.png", dpi=100)


def main(directory=None, count=1000):
    x, ys = measured(count)
    plain = curve_fit(spectrum, x, ys[0], START)
    fit = curve_fit(
        spectrum, x, ys[0], START, loss="soft_l1", f_scale=NOISE, verbose=2, history=True
    )
    print(fit)
    fits = curve_fit_batch(spectrum, x, ys, START, loss="soft_l1", f_scale=NOISE)
    print(fits)
    for name, true in TRUE.items():
        found = np.median(fits[0][name], axis=0)
        print(f"  {name:<8} {true} in truth, {found.round(3)} as the median of all fits")
    if directory:
        draw(pathlib.Path(directory), x, ys[0], fit, plain)
    return fit, fits


if __name__ == "__main__":
    main(*sys.argv[1:])
