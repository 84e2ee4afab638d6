"""Fitting: nonlinear least squares whose iterations can be watched.

`curve_fit` and `least_squares` are those of SciPy; `solve` is the solver itself, for use inside
`jit` and `vmap`. What is public is in the files of this folder; the folders below it, in the order
in which they may import each other: `_solver` (the iterations, as traced functions), `_data` (data
of all kinds), `_model` (what is fitted to them), `_program` (compiling, running and listening).
"""

from ._batch import curve_fit_batch as curve_fit_batch
from ._curve_fit import curve_fit as curve_fit
from ._fit_file import fit_file as fit_file
from ._least_squares import least_squares as least_squares
from ._program.cache import cache_dir as cache_dir
from ._program.cache import clear_cache as clear_cache
from ._result import BatchFit as BatchFit
from ._result import Fit as Fit
from ._solve import solve as solve
from ._solver.solver import Solution as Solution
