"""Fitting: nonlinear least squares whose iterations can be watched.

`curve_fit` and `least_squares` are those of SciPy; `solve` is the solver itself, to be used inside
of `jit` and `vmap`.
"""

from ._batch import BatchFit as BatchFit
from ._batch import curve_fit_batch as curve_fit_batch
from ._cache import cache_dir as cache_dir
from ._cache import clear_cache as clear_cache
from ._curve_fit import curve_fit as curve_fit
from ._descent import Solution as Solution
from ._file import fit_file as fit_file
from ._least_squares import least_squares as least_squares
from ._result import Fit as Fit
from ._solve import solve as solve
