"""Experiment trackers: what their loggers have in common, and one file for each.

Rows wait in a file until a tracker has them, so that a slow or absent one neither holds up the
program nor loses anything.
"""
