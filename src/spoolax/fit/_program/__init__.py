"""Programs: a solver for one model, compiled once, kept on disk, and run in full view.

Here the traced parts meet the host: the cache on disk, lanes of a batch, data that are streamed
through the device, and listeners. Only `spoolax.fit` imports it.
"""
