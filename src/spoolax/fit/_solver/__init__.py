"""The solver: nonlinear least squares by a trust-region method, in functions that JAX can trace.

It knows nothing about models, data or users: a problem maps parameters to their cost and to the
triangular factor of the Jacobian. Only `spoolax.fit` imports it.
"""
