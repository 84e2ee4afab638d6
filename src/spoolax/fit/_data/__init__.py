"""The data of a fit: checked as SciPy does, padded, in blocks, on a mesh, or from a file.

It knows nothing about models. Only `spoolax.fit` imports it.
"""
