"""What `log` means for `tap`, on the device: entries go into reels, which go to the host.

`streaming.py` is what becomes of entries, on top of `alarming.py`, `looping.py` and `reeling.py`;
`shards.py` has it done by each device of a `shard_map`.
"""
