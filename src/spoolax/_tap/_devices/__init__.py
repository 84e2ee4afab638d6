"""Programs on several devices, each of which hands over what it has by itself.

They do so in calls that all of them make (`_listen/gathering.py`): the devices of a `shard_map`
(`in_step.py`), and devices that have pieces of arrays (`in_pieces.py`).
"""
