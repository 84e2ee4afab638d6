"""Places that are no directories: memory, and services on this machine like S3 and Google's."""

import contextlib
import itertools
import logging
import threading
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


@contextlib.contextmanager
def gs_server():
    """What is needed of Google Cloud Storage, with all the buckets there are; yields its address.

    What is written, or deleted, only if an object has not been changed, is so here, too.
    """
    flask = pytest.importorskip("flask")
    make_server = pytest.importorskip("werkzeug.serving").make_server
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app, objects = flask.Flask("gs"), {}  # For each name, its generation and contents.
    generations, lock = itertools.count(1), threading.Lock()

    def has_changed(name):
        expected = flask.request.args.get("ifGenerationMatch")
        return expected is not None and int(expected) != objects.get(name, (0, b""))[0]

    @app.get("/storage/v1/b/<bucket>/o/<path:name>")
    def read(bucket, name):
        if (bucket, name) not in objects:
            return {}, 404
        generation, contents = objects[bucket, name]
        if flask.request.args.get("ifGenerationNotMatch") == str(generation):
            return "", 304
        answer = flask.Response(contents, headers={"x-goog-generation": str(generation)})
        return answer.make_conditional(
            flask.request, accept_ranges=True, complete_length=len(contents)
        )

    @app.post("/upload/storage/v1/b/<bucket>/o")
    def write(bucket):
        name = bucket, flask.request.args["name"]
        with lock:
            if has_changed(name):
                return {}, 412
            objects[name] = generation, _ = next(generations), flask.request.get_data()
        return {"name": name[1], "generation": str(generation)}

    @app.delete("/storage/v1/b/<bucket>/o/<path:name>")
    def delete(bucket, name):
        with lock:
            if has_changed((bucket, name)):
                return {}, 412
            return ("", 204) if objects.pop((bucket, name), None) else ({}, 404)

    @app.get("/storage/v1/b/<bucket>/o")
    def listed(bucket):
        first, end = (flask.request.args.get(key, "") for key in ("startOffset", "endOffset"))
        with lock:
            names = sorted(name for where, name in objects if where == bucket)
        names = [name for name in names if first <= name and (not end or name < end)]
        return {"items": [{"name": name, "size": "0"} for name in names]}

    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def new_name():
    """A name that no other test uses."""
    return f"tests/{next(_numbers)}/run.zarr"
