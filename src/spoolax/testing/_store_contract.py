"""What holds for every store, as tests."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._tap.host import flush
from ..errors import Converged, LogFileError, StopRun, StorageError
from ..loggers import EveryNStep, Once
from ..storage._reader import StorageReader
from ..storage._schema import WriterGroupConfig, is_array
from ..storage._store.contract import Backend, Status
from ..storage._store.dtypes import column_type_of
from ..storage._store.structures import leaf_names
from ..storage._store.tables import TableSpec
from ..storage._store.trees import leaves, structure_of
from ..storage._trajectory import TrajectoryWriter
from ..storage._writable import WritableStore

DTYPES = (
    *("bool", "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
    *("float16", "bfloat16", "float32", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz"),
)
WIDE_DTYPES = ("int64", "uint64", "float64", "complex128")


class StoreContract:
    """What holds for every backend of a store, as tests. Derive from it, and write `make`.

    Examples:
        >>> import pathlib, tempfile
        >>> from spoolax.storage.hdf5 import HDF5Backend
        >>> class TestHDF5(StoreContract):
        ...     def make(self):
        ...         return HDF5Backend()
        >>> TestHDF5().test_says_how_the_run_ended(pathlib.Path(tempfile.mkdtemp()))
    """

    def make(self) -> Backend:
        """Make a backend."""
        raise NotImplementedError

    def reader(self, path: Path) -> StorageReader:
        """Open a store for reading."""
        return StorageReader(path, backend=self.make())

    def writer(self, path: Path, *tables: TableSpec, **options: Any) -> WritableStore:
        """Open a store with these tables for writing."""
        meta = {"attributes": {"by": "a test"}, "config": {}, "start": 1.0}
        return WritableStore(
            self.make(), path, lambda _: tables, meta, writer="StoreContract", **options
        )

    def logger(self, path: Path, view: Any, state: Any, **options: Any) -> TrajectoryWriter:
        """A logger that writes one group, "rows"."""
        return TrajectoryWriter(
            self.make(), path, {"rows": WriterGroupConfig(view)}, state, **options
        )

    def log(self, path: Path, states: Sequence[Any]) -> Any:
        """Log states, and read them back."""
        with self.logger(path, lambda state: state, states[0]) as logger:
            for step, state in enumerate(states):
                logger.log(state, step)
        with self.reader(path) as reader:
            assert reader.steps("rows").tolist() == list(range(len(states)))
            return reader.focus_group("rows")[:]

    def test_returns_rows_as_they_were_written(self, tmp_path: Path) -> None:
        """In order, with their steps, which may repeat or go back, however many come at once."""
        path, table = tmp_path / "store", _table("rows", {"x": np.zeros((2, 3)), "n": np.int32(0)})
        rng = np.random.default_rng(0)
        x, n = rng.random((3000, 2, 3)), rng.integers(0, 9, 3000, np.int32)
        steps = rng.integers(-(2**62), 2**62, 3000)
        store, start = self.writer(path, table), 0
        for count in (1, 2, 500, 1, 1023, 1024, 449):
            stop = start + count
            store.append("rows", steps[start:stop], [x[start:stop], n[start:stop]])
            start = stop
        assert store.row_count("rows") == 3000
        store.close("finished")
        with self.reader(path) as reader:
            rows = reader.focus_group("rows")
            assert len(rows) == 3000
            assert (rows.steps == steps).all()
            for index in (slice(None), slice(1020, 1030), slice(-5, None), slice(9, 2, -3), 7, -1):
                assert (rows[index]["x"] == x[index]).all()
                assert (rows["n"][index] == n[index]).all()

    def test_can_be_opened_by_several_readers(self, tmp_path: Path) -> None:
        """At once, before and after its writer has closed it; none of them affects the others."""
        path, table = tmp_path / "store", _table("rows", {"n": np.int64(0)})
        store = self.writer(path, table)
        with self.reader(path) as first, self.reader(path) as second:
            one, part = first.focus_group("rows"), first.focus_group("rows")["n"]
            two = second.focus_group("rows")
            for start in range(0, 5000, 500):
                stop = start + 500
                store.append("rows", range(start, stop), [np.arange(start, stop)])
                for rows in (one[:]["n"], part[:], two[:]["n"], two.steps, one.steps):
                    assert (rows == np.arange(stop)).all()
            store.close("finished")
            second.close()
            with self.reader(path) as third:
                three = third.focus_group("rows")
                for rows in (one[:]["n"], three[:]["n"], part[:], three["n"][:]):
                    assert (rows == np.arange(5000)).all()
                assert first.status == third.status == "finished"

    def test_returns_every_dtype_to_the_bit(self, tmp_path: Path) -> None:
        """Also those that few file formats know, and arrays without elements."""
        rng = np.random.default_rng(0)
        for number, shape in enumerate([(), (3,), (2, 0, 3), (2, 3)]):
            states = [{name: _random_bits(rng, name, shape) for name in DTYPES} for _ in range(3)]
            rows = self.log(tmp_path / str(number), jax.tree.map(jnp.asarray, states))
            for name in DTYPES:
                expected = np.stack([state[name] for state in states])
                assert rows[name].dtype == jnp.dtype(name)
                assert rows[name].tobytes() == expected.tobytes(), name

    def test_returns_wide_dtypes_to_the_bit(self, tmp_path: Path) -> None:
        """64 bits and more, whether or not JAX is set to use them."""
        rng, path = np.random.default_rng(0), tmp_path / "store"
        columns = {name: _random_bits(rng, name, (5, 2)) for name in WIDE_DTYPES}
        table = _table("rows", {name: x[0] for name, x in columns.items()})
        store = self.writer(path, table)
        store.append("rows", range(5), list(columns.values()))
        store.close("finished")
        with self.reader(path) as reader:
            for name, rows in reader.focus_group("rows")[:].items():
                assert rows.dtype == np.dtype(name)
                assert rows.tobytes() == columns[name].tobytes(), name

    def test_returns_random_keys(self, tmp_path: Path) -> None:
        """As keys, with their implementation."""
        states = [{"k": jax.random.key(i), "rbg": jax.random.key(i, impl="rbg")} for i in range(3)]
        rows = self.log(tmp_path / "store", states)
        assert (rows["k"] == jnp.stack([state["k"] for state in states])).all()
        assert str(jax.random.key_impl(rows["rbg"])) == "rbg"

    def test_returns_large_rows(self, tmp_path: Path) -> None:
        """Which are not joined before they are written."""
        states = [jnp.full((300, 200), i, jnp.float32) for i in range(5)]
        assert (self.log(tmp_path / "store", states) == np.stack(states)).all()

    def test_takes_any_names(self, tmp_path: Path) -> None:
        """Columns may have names that mean something else in a file or a path."""
        trees = [
            {"step": 1, "_step": 2},
            {"step": {"a": 1}},
            {"_size_3": np.ones(3, np.float32)},
            {"\ud800": 1},
            {"": 1, "..": 2},
            {"a/b": 1, "a.b": 2},
        ]
        for number, tree in enumerate(trees):
            rows = self.log(tmp_path / str(number), [tree, tree])
            assert jax.tree.structure(rows) == jax.tree.structure(tree)
            for row, value in zip(jax.tree.leaves(rows), jax.tree.leaves(tree), strict=True):
                assert (row == np.stack([value, value])).all()

    def test_keeps_a_table_without_a_time_axis(self, tmp_path: Path) -> None:
        """Which has one row, or none."""
        path, tree = tmp_path / "store", {"x": np.arange(3), "e": np.float32(2)}
        store = self.writer(path, _table("a", tree, timed=False), _table("b", tree, timed=False))
        store.append("a", [7], [np.asarray(value)[None] for value in tree.values()])
        store.close("finished")
        with self.reader(path) as reader:
            rows = reader.focus_group("a")
            assert (len(rows), rows.steps.tolist()) == (1, [7])
            assert (rows[...]["x"].tolist(), float(rows[...]["e"])) == ([0, 1, 2], 2.0)
            assert len(reader.focus_group("b")) == 0
            with _raises(StorageError, "never written"):
                reader.focus_group("b")[...]

    def test_keeps_metadata(self, tmp_path: Path) -> None:
        """Attributes and the configuration of the run, and what is known about a table."""
        path = tmp_path / "store"
        config = {"model": {"rate": 0.5, "sizes": [1, 2]}, "name": "m\u00fc", "none": None}
        with self.logger(path, lambda x: x, 1.0, config=config, attributes={"who": "me"}) as logger:
            logger.log(1.0, 0)
        with self.reader(path) as reader:
            assert reader.meta["config"] == config
            assert reader.meta["attributes"] == {"who": "me"}
            assert reader.meta["versions"]["jax"] == jax.__version__
        store = self.writer(path, _table("a/b", np.float32(0), about={"tags": ["t"]}), mode="w")
        store.close("finished")
        with self.reader(path) as reader:
            assert reader.groups == ("a/b",)
            assert reader.focus_group("a/b").about == {"tags": ["t"]}

    def test_says_how_the_run_ended(self, tmp_path: Path) -> None:
        """Running, finished, interrupted or failed, why, and how many steps have run."""
        endings: dict[Status, str] = {
            "finished": "",
            "failed": "ValueError: \u221e",
            "interrupted": "x" + 999 * "\u221e",  # It may be cut off.
        }
        for ending, reason in endings.items():
            path = tmp_path / ending
            store = self.writer(path, _table("rows", np.float32(0)))
            with self.reader(path) as reader:
                assert (reader.status, reader.steps_run) == ("running", 0)
                store.commit(5)
                assert (reader.status, reader.steps_run) == ("running", 5)
                assert reader.reason == ""
            store.close(ending, reason)
            with self.reader(path) as reader:
                assert (reader.status, reader.steps_run) == (ending, 5)
                assert reader.reason[:100] == reason[:100]
                assert reason.startswith(reader.reason)
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(endings)

    def test_says_that_a_run_was_interrupted(self, tmp_path: Path) -> None:
        """By Ctrl-C or `StopRun`; also in the stores of the runs of `init`."""
        for error, ending in (
            (KeyboardInterrupt(), ("interrupted", "KeyboardInterrupt")),
            (StopRun("enough"), ("interrupted", "enough")),
            (Converged("flat"), ("finished", "flat")),
            (ZeroDivisionError("no"), ("failed", "ZeroDivisionError: no")),
        ):
            path = tmp_path / type(error).__name__
            try:
                with self.logger(path, lambda x: {"x": x["x"]}, {"x": 1.0}) as logger:
                    logger.log({"x": 1.0}, 0)
                    logger.init(0)
                    flush()
                    runs = list(logger.runs.values())
                    raise error
            except BaseException as raised:
                assert raised is error
            for one in (logger, *runs):
                assert one.ending == ending
                assert isinstance(one, TrajectoryWriter)
                with self.reader(one.path) as reader:
                    assert (reader.status, reader.reason) == ending

    def test_counts_rows_when_they_are_committed(self, tmp_path: Path) -> None:
        """If appending fails halfway, nothing of those rows counts, and others may follow."""
        path, table = tmp_path / "store", _table("rows", {"x": np.zeros(3), "y": np.zeros(3)})
        good, bad = np.arange(6.0).reshape(2, 3), np.zeros((2, 5))
        store = self.writer(path, table)
        with self.reader(path) as reader:
            rows = reader.focus_group("rows")
            store.append("rows", [0, 1], [good, -good])
            try:
                store.append("rows", [2, 3], [good + 10, bad])
            except Exception:
                assert store.row_count("rows") == len(rows) == 2
            else:
                raise AssertionError("rows of another shape were taken")
            assert (rows[:]["x"] == good).all()
            store.append("rows", [2, 3], [good + 20, -good])
            assert (rows[:]["x"] == np.concatenate([good, good + 20])).all()
            assert rows.steps.tolist() == [0, 1, 2, 3]
        store.close("finished")

    def test_commits_rows_while_more_are_being_written(self, tmp_path: Path) -> None:
        """Rows that have begun, and that nobody commits, leave no trace."""
        table, x = _table("rows", {"x": np.zeros(3)}), np.arange(75.0).reshape(25, 3)
        for count in range(5):
            path = tmp_path / str(count)
            store, kept = self.writer(path, table), 5 * count
            with self.reader(path) as reader:
                rows = reader.focus_group("rows")
                for number, at in enumerate(range(0, 25, 5)):
                    begun = store.begin("rows", range(at, at + 5), [x[at : at + 5]])
                    if number == count - 1:
                        store.commit(0)
                    assert begun or len(rows) == at + 5, "they count at once"
                    assert (rows[:]["x"] == x[: len(rows)]).all()
                kept = kept if begun else 25
                assert len(rows) == kept
            store.close("failed")
            store = self.writer(path, table, resume=True)
            assert store.row_count("rows") == kept
            store.append("rows", [99], [x[:1]])
            store.close("finished")
            with self.reader(path) as reader:
                assert reader.steps("rows").tolist() == [*range(kept), 99]
                expected = np.concatenate([x[:kept], x[:1]])
                assert (reader.focus_group("rows")[:]["x"] == expected).all()

    def test_can_be_read_while_it_is_written(self, tmp_path: Path) -> None:
        """A reader that was opened first sees each row as soon as it is committed."""
        path, table = tmp_path / "store", _table("rows", {"x": np.zeros(3)})
        store = self.writer(path, table)
        with self.reader(path) as reader:
            rows = reader.focus_group("rows")
            followed = rows.follow(poll=0.01, timeout=30)
            for i in range(50):
                store.append("rows", [i], [np.full((1, 3), float(i))])
                steps, new = next(followed)
                assert (steps.tolist(), new["x"].tolist()) == ([i], [[i] * 3])
                assert (rows[:]["x"][:, 0] == np.arange(i + 1)).all()
                assert reader.status == "running"
            store.close("finished")
            assert list(followed) == []

    def test_takes_more_tables_while_it_is_written(self, tmp_path: Path) -> None:
        """Rows that are there stay, and readers see both."""
        path, first, second = tmp_path / "store", _table("a", np.int64(0)), _table("b", np.zeros(2))
        store = self.writer(path)
        with self.reader(path) as reader:
            assert not reader.groups
            store.add_tables([first])
            store.append("a", [0, 1], [np.arange(2)])
            rows = reader.focus_group("a")
            assert rows[:].tolist() == [0, 1]
            store.add_tables([second])
            store.append("b", [5], [np.ones((1, 2))])
            store.append("a", [2], [np.full(1, 2)])
            assert list(reader.groups) == ["a", "b"]
            assert rows[:].tolist() == [0, 1, 2]
            assert reader.focus_group("b")[:].tolist() == [[1, 1]]
            assert reader.status == "running"
        store.close("finished")
        with self.reader(path) as reader:
            assert reader.focus_group("a").steps.tolist() == [0, 1, 2]

    def test_is_readable_after_a_crash_and_can_be_resumed(self, tmp_path: Path) -> None:
        """A writer that never closed its store leaves everything up to its last commit."""
        path, crashed = tmp_path / "store", tmp_path / "crashed"
        tables = _table("rows", {"x": np.zeros(3)}), _table("start", np.float32(0), timed=False)
        store = self.writer(path, *tables)
        store.append("start", [0], [np.ones(1, np.float32)])
        for count in range(40):
            store.append("rows", [count], [np.full((1, 3), float(count))])
            store.commit(count + 1)
            if count % 13:
                continue
            # What a process that is killed now would leave, which is not locked.
            (shutil.copytree if path.is_dir() else shutil.copy)(path, crashed)
            with self.reader(crashed) as reader:
                assert (reader.status, reader.steps_run) == ("crashed", count + 1)
                assert reader.steps("rows").tolist() == list(range(count + 1))
            again = self.writer(crashed, *tables, resume=True)
            assert (again.row_count("rows"), again.steps_run) == (count + 1, count + 1)
            again.append("rows", [100], [np.full((1, 3), 100.0)])
            again.close("finished")
            with self.reader(crashed) as reader:
                assert reader.status == "finished"
                rows = reader.focus_group("rows")[:]["x"]
                assert rows[:, 0].tolist() == [*range(count + 1), 100]
                assert float(reader.focus_group("start")[...]) == 1
                assert reader.meta["attributes"] == {"by": "a test"}
            shutil.rmtree(crashed) if crashed.is_dir() else crashed.unlink()
        store.close("finished")

    def test_is_resumed_after_a_step(self, tmp_path: Path) -> None:
        """Rows after it are dropped, and another schema is refused."""
        path = tmp_path / "store"
        schema = {
            "start": WriterGroupConfig(lambda x: x, Once()),
            "rows": WriterGroupConfig(lambda x: {"x": x * jnp.ones(3)}, EveryNStep(2)),
        }

        def run(steps: range, schema: Any = schema, **options: Any) -> None:
            writer = TrajectoryWriter(self.make(), path, schema, jnp.float32(0), **options)
            with writer:
                for i in steps:
                    writer.log(jnp.float32(i), i)

        run(range(10))
        run(range(10, 15), resume=True)
        with self.reader(path) as reader:
            assert reader.steps("rows").tolist() == list(range(0, 15, 2))
            assert reader.focus_group("start")[:] == 0
            assert reader.steps_run == 15
        run(range(6, 9), resume=5)
        with self.reader(path) as reader:
            assert reader.steps("rows").tolist() == [0, 2, 4, 6, 8]
            assert reader.focus_group("rows")[:]["x"][:, 0].tolist() == [0, 2, 4, 6, 8]
        with _raises(StorageError, "other arrays than the schema (x)"):
            other = {**schema, "rows": WriterGroupConfig(lambda x: {"x": x})}
            run(range(0), schema=other, resume=True)
        with _raises(StorageError, "not those of the schema"):
            run(range(0), schema={"a": schema["start"]}, resume=True)
        run(range(9, 11), resume=True)
        assert [p.name for p in tmp_path.iterdir()] == ["store"]

    def test_is_resumed_by_the_names_of_its_columns(self, tmp_path: Path) -> None:
        """Their order makes no difference: a schema may have its keys in another one by now."""
        path = tmp_path / "store"
        for view in (lambda s: {"a": s, "b": -s}, lambda s: {"b": -s, "a": s}):
            with self.logger(path, view, 1.0, resume=True) as logger:
                logger.log(3.0, 0)
        with self.reader(path) as reader:
            rows = reader.focus_group("rows")[:]
        assert rows["a"].tolist() == [3, 3]
        assert rows["b"].tolist() == [-3, -3]

    def test_is_written_by_one_writer_at_a_time(self, tmp_path: Path) -> None:
        """A second one is refused, until the first has closed it."""
        path, table = tmp_path / "store", _table("rows", np.float32(0))
        store = self.writer(path, table)
        store.append("rows", [0], [np.ones(1, np.float32)])
        for options in ({"mode": "w"}, {"resume": True}, {"mode": "x"}):
            with _raises(LogFileError, f"is being written by process {os.getpid()}"):
                self.writer(path, table, **options)
        store.append("rows", [1], [np.ones(1, np.float32)])
        store.close("finished")
        assert [p.name for p in tmp_path.iterdir()] == ["store"]
        store = self.writer(path, table, resume=True)
        assert store.row_count("rows") == 2
        store.close("finished")

    def test_replaces_a_store_only_if_asked(self, tmp_path: Path) -> None:
        """`mode="x"` refuses a path that exists, "w" replaces what is there."""
        path, table = tmp_path / "store", _table("rows", np.float32(0))
        self.writer(path, table).close("finished")
        with _raises(LogFileError, "`mode='w'` to replace it"):
            self.writer(path, table)
        store = self.writer(path, table, mode="w")
        store.append("rows", [4], [np.ones(1, np.float32)])
        store.close("finished")
        with self.reader(path) as reader:
            assert reader.steps("rows").tolist() == [4]

    def test_refuses_what_is_not_a_store(self, tmp_path: Path) -> None:
        """With a `StorageError`."""
        (tmp_path / "text").write_text("hello")
        (tmp_path / "directory").mkdir()
        for name in ("nothing", "text", "directory"):
            with _raises(StorageError, name):
                self.reader(tmp_path / name)


def _table(name: str, row: Any, timed: bool = True, about: Any = None) -> TableSpec:
    """A table with rows like this one."""
    structure = structure_of(row, is_array)
    types = map(column_type_of, leaves(row, is_array))
    columns = list(zip(leaf_names(structure), types, strict=True))
    return TableSpec(name, structure, columns, timed, about or {})


def _random_bits(rng: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Any numbers of a dtype, NaNs of all kinds included."""
    dtype = jnp.dtype(name)
    bits = rng.integers(0, 255, (*shape, dtype.itemsize), np.uint8)
    if name == "bool" or "int4" in name:
        return (bits[..., 0] % (2 if name == "bool" else 8)).astype(dtype)
    return np.ascontiguousarray(bits).view(dtype)[..., 0]


@contextlib.contextmanager
def _raises(kind: type[Exception], text: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert text in str(error), f"expected {text!r} in {str(error)!r}"
        return
    raise AssertionError(f"expected a {kind.__name__}")
