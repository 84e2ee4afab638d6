"""Programs on several devices, each of which hands over what it has by itself.

`gathering.py` puts together the calls that all of them make: those of the devices of a `shard_map`
(`in_step.py`), and those of devices that have pieces of arrays (`in_pieces.py`).
"""
