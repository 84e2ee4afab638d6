"""An entry as trackers get it: one row of scalars, histograms, images and texts.

Rows are built on spoolax's thread, which decides everything about numbers; what sends them only has
to send. Only `trackers` imports it.
"""
