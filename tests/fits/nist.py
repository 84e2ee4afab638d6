"""NIST's reference problems for nonlinear regression, with certified values."""

import pathlib
import re
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

DATA = pathlib.Path(__file__).parents[1] / "data" / "nist"
NUMBER = r"[-+]?\d*\.?\d+(?:[Ee][-+]?\d+)?"


class Problem(NamedTuple):
    starts: tuple[np.ndarray, np.ndarray]
    certified: np.ndarray
    errors: np.ndarray
    x: np.ndarray
    y: np.ndarray


def problem(name):
    """Read a problem from its file."""
    lines = (DATA / f"{name}.dat").read_text().splitlines()
    begin = max(i for i, line in enumerate(lines) if line.startswith("Data:"))
    rows = [line.split("=")[1] for line in lines[:begin] if re.match(r"\s*b\d+\s*=", line)]
    table = np.array([[float(x) for x in re.findall(NUMBER, row)] for row in rows])
    data = np.array([[float(x) for x in row.split()] for row in lines[begin + 1 :] if row.strip()])
    y, x = data[:, 0], data[:, 1] if data.shape[1] == 2 else data[:, 1:].T
    if name == "Nelson":  # Its model is for the logarithm.
        y = np.log(y)
    return Problem((table[:, 0], table[:, 1]), table[:, 2], table[:, 3], x, y)


def chwirut(x, b1, b2, b3):
    return jnp.exp(-b1 * x) / (b2 + b3 * x)


def enso(x, b1, b2, b3, b4, b5, b6, b7, b8, b9):
    def wave(period, cos, sin):
        return cos * jnp.cos(2 * jnp.pi * x / period) + sin * jnp.sin(2 * jnp.pi * x / period)

    return b1 + wave(12, b2, b3) + wave(b4, b5, b6) + wave(b7, b8, b9)


def eckerle(x, b1, b2, b3):
    return b1 / b2 * jnp.exp(-0.5 * ((x - b3) / b2) ** 2)


def gauss(x, b1, b2, b3, b4, b5, b6, b7, b8):
    peaks = b3 * jnp.exp(-((x - b4) ** 2) / b5**2) + b6 * jnp.exp(-((x - b7) ** 2) / b8**2)
    return b1 * jnp.exp(-b2 * x) + peaks


def kirby(x, b1, b2, b3, b4, b5):
    return (b1 + b2 * x + b3 * x**2) / (1 + b4 * x + b5 * x**2)


def lanczos(x, b1, b2, b3, b4, b5, b6):
    return b1 * jnp.exp(-b2 * x) + b3 * jnp.exp(-b4 * x) + b5 * jnp.exp(-b6 * x)


def thurber(x, b1, b2, b3, b4, b5, b6, b7):
    return (b1 + b2 * x + b3 * x**2 + b4 * x**3) / (1 + b5 * x + b6 * x**2 + b7 * x**3)


MODELS = {
    "Chwirut1": chwirut,
    "Chwirut2": chwirut,
    "DanWood": lambda x, b1, b2: b1 * x**b2,
    "ENSO": enso,
    "Eckerle4": eckerle,
    "Gauss1": gauss,
    "Gauss2": gauss,
    "Kirby2": kirby,
    "Lanczos1": lanczos,
    "Lanczos3": lanczos,
    "MGH17": lambda x, b1, b2, b3, b4, b5: b1 + b2 * jnp.exp(-x * b4) + b3 * jnp.exp(-x * b5),
    "Misra1a": lambda x, b1, b2: b1 * (1 - jnp.exp(-b2 * x)),
    "Misra1b": lambda x, b1, b2: b1 * (1 - (1 + b2 * x / 2) ** (-2)),
    "Misra1c": lambda x, b1, b2: b1 * (1 - (1 + 2 * b2 * x) ** (-0.5)),
    "Nelson": lambda x, b1, b2, b3: b1 - b2 * x[0] * jnp.exp(-b3 * x[1]),
    "Rat42": lambda x, b1, b2, b3: b1 / (1 + jnp.exp(b2 - b3 * x)),
    "Thurber": thurber,
}
