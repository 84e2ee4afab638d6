"""Fitting: nonlinear least squares whose iterations can be watched.

`curve_fit` is that of SciPy; `solve` is the solver itself, to be used inside of `jit` and `vmap`.
"""

from ._curve_fit import curve_fit as curve_fit
from ._result import Fit as Fit
from ._solve import Solution as Solution
from ._solve import solve as solve
