"""Loggers of experiment trackers: one file for each tracker, on top of what they share.

`_tracker` is their base class, which takes the same arguments for all of them (`_arguments`,
`_config`). It turns entries into rows (`_rows`) and delivers these (`_delivery`) through a file, so
a slow or absent tracker neither holds up the program nor loses anything. `_replay` sends what is
left in such files. Only `loggers` imports it.
"""
