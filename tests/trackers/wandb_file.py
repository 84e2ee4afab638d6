"""Reads the file of an offline run of wandb: a log in LevelDB's format, of protocol buffers.

See https://github.com/google/leveldb/blob/main/doc/log_format.md; wandb puts seven bytes in front.
"""

import json
import struct
import time

BLOCK = 32768
HEADER = 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def chunks(data):
    at, parts = HEADER, []
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:  # What follows does not fit into the block.
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if kind == 0:
            at += left
            continue
        if at + HEADER + size > len(data):  # It is not all there.
            return
        parts.append(data[at + HEADER : at + HEADER + size])
        at += HEADER + size
        if kind in (FULL, LAST):
            yield b"".join(parts)
            parts = []


def records(path):
    from wandb.proto.wandb_internal_pb2 import Record

    for chunk in chunks(path.read_bytes()):
        record = Record()
        record.ParseFromString(chunk)
        yield record


def items(protos):
    found = {}
    for proto in protos:
        *above, name = proto.nested_key or [proto.key]
        inner = found
        for key in above:
            inner = inner.setdefault(key, {})
        inner[name] = json.loads(proto.value_json)
    return found


class WandbFile:
    """What is in the file of one run.

    wandb writes it from a process of its own, which may be a moment behind when a run was closed.
    """

    def __init__(self, path, is_closed=True):
        end = time.monotonic() + 30
        self._read(path)
        while is_closed and self.exit_code is None and time.monotonic() < end:
            time.sleep(0.05)
            self._read(path)

    def _read(self, path):
        self.history, self.metrics, self.config, self.summary = [], {}, {}, {}
        self.run = self.exit_code = None
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "history":
                self.history.append(items(record.history.item))
            elif kind == "metric":
                self.metrics[record.metric.name] = record.metric.step_metric
            elif kind == "run":
                self.run = record.run
                self.config.update(items(record.run.config.update))
            elif kind == "summary":
                self.summary.update(items(record.summary.update))
            elif kind == "exit":
                self.exit_code = record.exit.exit_code
