"""Places that are no directories: the memory of this process, and an S3 service on this machine."""

import contextlib
import itertools
import logging
import urllib.request

import pytest

_numbers = itertools.count()


@contextlib.contextmanager
def s3_server():
    """An S3 service with a bucket called "bucket"; yields its address."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    try:
        _, port = server.get_host_and_port()
        address = f"http://127.0.0.1:{port}"
        made = urllib.request.Request(f"{address}/bucket", method="PUT")
        urllib.request.urlopen(made).close()
        yield address
    finally:
        server.stop()


def new_name():
    """A name that no other test uses."""
    return f"tests/{next(_numbers)}/run.zarr"
