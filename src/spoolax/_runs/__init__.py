"""Runs: where they live, how one is recorded, and how they are listed, opened and looked at.

A run is a directory that `spoolax.run` made, or a single file of a logger. Reading one needs no
JAX, which takes longer to import than most of what the command line does.
"""
