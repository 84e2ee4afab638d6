"""Rows on their way to a tracker, which may be slow, away, or gone for good.

A row is appended to a file first (`unsent_rows`, `unsent_file`), and sent from there (`channel`) by
a thread (`outbox`). What the tracker never accepts is put aside (`refused_rows`). Only `trackers`
imports it.
"""
