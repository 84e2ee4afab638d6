"""Stores in Zarr hierarchies (format 3): directories, or prefixes in buckets.

`storage` gets its backend from here, and imports nothing else. They are written with tensorstore.

    run.zarr/zarr.json             the root group; its attributes are the state of the store: the
                                   metadata of the run, its status, and how many rows each group has
    run.zarr/frames/zarr.json      a group of the schema; its attribute `table` is the structure of
                                   a row
    run.zarr/frames/x/zarr.json    an array: rows along the first axis, several of them in a chunk
    run.zarr/frames/x/c/0/0        a chunk
    run.zarr/frames/step/...       the step of each row

Chunks are written first, then the root, in one step: that commits their rows. `docs/format.md`
describes all of it.
"""

from ._backend import DEFAULT as DEFAULT
from ._backend import ZarrBackend as ZarrBackend
