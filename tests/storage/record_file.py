"""The smallest backend there can be: a file of records, each with its length in front.

It shows that nothing outside of a backend knows HDF5, and what a new one has to do. It reads the
whole file for everything, so it is of no other use. A record counts if all of it is there.
"""

import io
import json
import os

import numpy as np

from spoolax.errors import StorageError
from spoolax.storage._store.files import InOneFile
from spoolax.storage._store.metadata import with_schema
from spoolax.storage._store.tables import TableSpec

MAGIC = b"records\n"


class RecordFileBackend(InOneFile):
    packages = ()
    options = {}

    def check(self, tables):
        pass

    def create(self, path, meta, tables, expected_rows):
        return Writer(path, meta, tables, steps_run=0)

    def resume(self, path, meta, tables, expected_rows, *, rows, steps_run):
        old = self.open(path)
        kept = {}
        for table in tables:
            stored = old.table(table.name)
            count = stored.row_count() if rows is None else rows[table.name]
            columns = [stored.read(column, 0, count) for column, _ in table.stored_columns]
            kept[table.name] = stored.steps(0, count), columns
        writer = Writer(path, meta, tables, steps_run)
        for name, (steps, columns) in kept.items():
            if len(steps):
                writer.begin(name, steps, columns)
        return writer

    def open(self, path):
        return Reader(path)


class Writer:
    def __init__(self, path, meta, tables, steps_run):
        draft = path.with_name(f".{path.name}.draft")
        self._file, self._meta, self._tables, self._counts = draft.open("xb"), meta, [], {}
        self._file.write(MAGIC)
        self._write({"status": "running"})
        self._write({"reason": ""})
        self.commit(steps_run)
        self.add_tables(tables)
        os.replace(draft, path)

    def row_count(self, table):
        return self._counts[table]

    def add_tables(self, tables):
        self._tables += tables
        self._counts |= {table.name: 0 for table in tables}
        specs = {table.name: table.as_json() for table in self._tables}
        self._write({"meta": with_schema(self._meta, self._tables), "tables": specs})

    def begin(self, table, steps, columns, written=lambda: None):
        (spec,) = (one for one in self._tables if one.name == table)
        blocks = [np.asarray(column) for column in columns]
        for block, (_, column) in zip(blocks, spec.stored_columns, strict=True):
            assert block.shape == (len(steps), *column.shape)
        self._write({"rows": table}, steps, *blocks)
        self._counts[table] += len(steps)

    def commit(self, steps_run):
        self._write({"steps_run": steps_run})

    def close(self, status, reason="", end=None):
        self._write({"reason": reason})
        self._write({"status": status})
        self._file.close()

    def _write(self, record, *arrays):
        data = io.BytesIO()
        np.savez(data, np.frombuffer(json.dumps(record).encode(), np.uint8), *arrays)
        self._file.write(len(data.getvalue()).to_bytes(8, "little") + data.getvalue())
        self._file.flush()


class Reader:
    def __init__(self, path):
        self._path = path
        if not path.is_file() or not path.read_bytes().startswith(MAGIC):
            raise StorageError(f"{str(path)!r} is not a file of records.")
        self._inode, self._meta = path.stat().st_ino, self._last("meta")

    def records(self):
        data, at = self._path.read_bytes(), len(MAGIC)
        while at + 8 <= len(data):
            start, at = at + 8, at + 8 + int.from_bytes(data[at : at + 8], "little")
            if at <= len(data):
                with np.load(io.BytesIO(data[start:at])) as loaded:
                    record, *arrays = loaded.values()
                yield json.loads(record.tobytes()), arrays

    def _last(self, key):
        return [record[key] for record, _ in self.records() if key in record][-1]

    @property
    def meta(self):
        return self._meta

    def status(self):
        return self._last("status")

    def reason(self):
        return self._last("reason")

    def steps_run(self):
        return self._last("steps_run")

    def table(self, name):
        return Table(self, TableSpec.from_json(name, self._last("tables")[name]))

    def is_current(self):
        is_same_file = not self._path.exists() or self._path.stat().st_ino == self._inode
        return is_same_file and self._last("meta") == self._meta

    def close(self):
        pass


class Table:
    def __init__(self, reader, spec):
        self._reader, self.spec = reader, spec

    def rows(self):
        types = [column for _, column in self.spec.stored_columns]
        parts = [[np.zeros(0, np.int64), *(np.zeros((0, *c.shape), c.stored) for c in types)]]
        parts += [a for record, a in self._reader.records() if record.get("rows") == self.spec.name]
        steps, *columns = map(np.concatenate, zip(*parts, strict=True))
        return steps, columns

    def row_count(self):
        return len(self.rows()[0])

    def steps(self, start, stop):
        return self.rows()[0][start:stop]

    def read(self, column, start, stop):
        names = [name for name, _ in self.spec.stored_columns]
        return self.rows()[1][names.index(column)][start:stop]
