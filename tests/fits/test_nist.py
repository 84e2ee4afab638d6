"""The certified answers of the NIST reference problems, with the digits that the docs promise."""

import pathlib
import re

import numpy as np
import pytest
from nist import MODELS, problem

from spoolax.fit import curve_fit


def digits(found, certified):
    """How many are right, of the worst of them."""
    error = np.abs(found - certified) / np.abs(certified)
    return -np.log10(np.maximum(error, 1e-16)).min()


def documented():
    """The digits that the table in the docs promises, by the name of the problem."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "fitting.md").read_text()
    rows = re.findall(r"^\| (\w+) \| \d+ \| \d+ \| (\d+), (\d+) \| (\d+), (\d+) \|", page, re.M)
    return {name: tuple(map(int, found)) for name, *found in rows}


def test_the_docs_tell_of_all_reference_problems():
    assert set(documented()) == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_the_certified_answers_are_found_from_both_starts(name):
    given, promised = problem(name), documented()[name]
    for i, start in enumerate(given.starts):
        fit = curve_fit(MODELS[name], given.x, given.y, start)
        assert digits(fit.x, given.certified) > max(promised[i] - 3, 6)
        # The residuals of one of them are below rounding, and so are its errors.
        assert digits(fit.perr, given.errors) > max(
            promised[2 + i] - 3, 3 if name == "Lanczos1" else 4
        )
