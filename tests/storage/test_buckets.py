"""Stores in buckets: everything that holds for directories, and leases instead of locks."""

import json
import os
import time

import jax.numpy as jnp
import numpy as np
import pytest
from buckets import gs_server, new_name, s3_server
from click.testing import CliRunner

import spoolax
from spoolax.cli.commands import app
from spoolax.errors import LogFileError, StorageError
from spoolax.storage import SaveLogger, WriterGroupConfig, ZarrStorageReader, ZarrStorageWriter
from spoolax.storage._writable import WritableStore
from spoolax.storage.zarr import ZarrBackend, _lease, _place
from spoolax.view.catalog import Catalog

pytest.importorskip("tensorstore")
SCHEMA = {"frames": WriterGroupConfig(lambda s: {"x": s})}


@pytest.fixture(scope="module")
def address():
    with s3_server() as address:
        yield address


@pytest.fixture(scope="module")
def gs_address():
    with gs_server() as address:
        yield address


@pytest.fixture(params=["s3", "gs", "memory"])
def url(request, monkeypatch):
    if request.param == "memory":
        return f"memory://{new_name()}"
    if request.param == "gs":
        monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", request.getfixturevalue("gs_address"))
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "nobody")
        return f"gs://bucket/{new_name()}"
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("address"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    return f"s3://bucket/{new_name()}"


def write(url, steps, **options):
    with ZarrStorageWriter(url, SCHEMA, jnp.zeros(3), **options) as writer:
        for i in steps:
            writer.log(jnp.full(3, float(i)), i)
    return writer


def rows(url):
    with spoolax.open(url) as run:
        return run["frames/x"][:].tolist()


def test_a_trajectory_is_written_read_resumed_and_replaced(url):
    assert str(write(url, range(10)).path) == url
    assert rows(url) == [[i] * 3 for i in range(10)]
    write(url, [5, 6], resume=4)
    assert rows(url) == [[i] * 3 for i in range(7)]
    with pytest.raises(LogFileError, match="`mode='w'` to replace it"):
        write(url, [])
    write(url, [7], mode="w")
    assert rows(url) == [[7] * 3]
    with ZarrStorageReader(url) as reader:
        assert (reader.status, reader.steps_run) == ("finished", 1)
        assert repr(reader).startswith(f"<'{url}'")


def test_a_reader_sees_rows_as_they_are_committed(url):
    with ZarrStorageWriter(url, SCHEMA, jnp.zeros(3)) as writer, ZarrStorageReader(url) as reader:
        for i in range(3):
            writer.log(jnp.full(3, float(i)), i)
            writer.commit()
            assert reader.steps("frames").tolist() == list(range(i + 1))
            assert reader.status == "running"
    with ZarrStorageReader(url) as reader:
        assert reader.status == "finished"


def test_logs_without_a_schema(url):
    with SaveLogger(url) as logger:
        logger.log({"loss": 0.5}, 1)
        logger.commit()
        logger.log({"w": np.arange(3)}, 2)
    logs = spoolax.load(url)
    assert (logs["loss"].tolist(), logs["w"].tolist()) == ([0.5], [[0, 1, 2]])


def test_commands_take_urls(url):
    write(url, range(3))
    ran = CliRunner().invoke(app, ["show", url])
    assert ran.exit_code == 0, ran.output
    assert "frames/x" in ran.stdout


def test_the_page_sees_a_run_grow(url):
    with SaveLogger(url) as logger:
        logger.log({"loss": 0.5}, 1)
        logger.commit()
        catalog = Catalog([logger.path])
        (listed,) = catalog.listed()["runs"]
        assert (listed["status"], listed["last"]) == ("running", {"loss": 0.5})
        before = catalog.signatures(False)
        logger.log({"loss": 0.25}, 2)
        logger.commit()
        assert catalog.signatures(False) != before
        with catalog.opened(listed["id"]) as run:
            assert run["loss"][-1] == 0.25


def test_a_second_writer_is_refused_as_long_as_the_first_is_alive(url):
    with ZarrStorageWriter(url, SCHEMA, jnp.zeros(3)):
        with pytest.raises(LogFileError, match=f"is being written by process {os.getpid()}"):
            write(url, [], resume=True)
    write(url, [0], resume=True)
    assert rows(url) == [[0] * 3]


def test_one_that_was_given_up_for_dead_cannot_write_any_more(url, monkeypatch):
    """Its lease ended, another took over, and what that wrote stays as it is."""
    monkeypatch.setattr(_lease, "SECONDS", 0.0)
    monkeypatch.setattr(_lease.Lease, "_renew", lambda self: None)
    first = WritableStore(ZarrBackend(), url, tables, META, writer="a test")
    first.append("rows", [0], [np.zeros(1)])
    with ZarrStorageReader(url) as reader:
        assert reader.status == "crashed"
    second = WritableStore(ZarrBackend(), url, tables, META, writer="a test", resume=True)
    with pytest.raises(LogFileError, match="has been removed or replaced"):
        first.append("rows", [1], [np.ones(1)])
    second.append("rows", [2], [np.full(1, 2.0)])
    second.close("finished")
    with ZarrStorageReader(url) as reader:
        assert reader.focus_group("rows")[:].tolist() == [0, 2]


def test_a_lease_is_renewed(url, monkeypatch):
    monkeypatch.setattr(_lease, "SECONDS", 0.04)
    lease = _place.place_of(spoolax.storage._writable.as_path(url), None).lock()
    lease.acquire()
    try:
        found = {json.loads(lease._store.read("").result().value)["until"]}
        deadline = time.monotonic() + 60
        while len(found) < 3 and time.monotonic() < deadline:
            found.add(json.loads(lease._store.read("").result().value)["until"])
        assert len(found) == 3
    finally:
        lease.release()
    assert not lease.is_held()


def test_what_is_no_store_is_left_alone(url):
    place = _place.place_of(spoolax.storage._writable.as_path(url), None)
    _place.kvstore(place.spec, _place.writing()).write("mine", b"mine").result()
    with pytest.raises(LogFileError, match="something there that is not a Zarr store"):
        write(url, [], mode="w")
    with pytest.raises(StorageError, match="There is no Zarr store"):
        spoolax.open(url)


def test_a_bucket_needs_a_name_in_it():
    with pytest.raises(LogFileError, match=r'write "s3://bucket/name\.zarr"'):
        write("s3://bucket", [])


@pytest.mark.parametrize("url", ["gs://B/run.zarr", "s3://nowhere/run.zarr"])
def test_a_bucket_that_cannot_be_is_an_error_that_says_what_to_check(url, address, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    with pytest.raises(LogFileError, match="Check the name of the bucket"):
        write(url, [])


def test_the_address_can_be_an_argument(address, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    url = f"s3://bucket/{new_name()}"
    write(url, range(2), endpoint=address)
    with ZarrStorageReader(url, endpoint=address) as reader:
        assert reader.steps("frames").tolist() == [0, 1]


META = {"attributes": {}, "config": {}, "start": 1.0}


def tables(old):
    from spoolax.testing._store_contract import _table

    return [_table("rows", np.float64(0))]
