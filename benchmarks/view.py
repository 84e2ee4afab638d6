"""The page next to TensorBoard and Trackio: the time to a first curve, memory, many runs.

What is timed is what a browser waits for: from the start of the command until the server has
answered with the points of a curve. Trackio's page gets its points by a protocol of its own, so
for it, it is the time until the page itself is there.
"""

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import psutil

import spoolax
from spoolax.storage import SaveLogger

from .measure import _time

SIZES = (10_000, 1_000_000, 10_000_000)
SLOW_TO_WRITE = 1_000_000  # With the others, which take an entry at a time.
RUNS, KEYS, POINTS = 50, 20, 100_000
PATIENCE = 300.0  # Seconds.


def main():
    with tempfile.TemporaryDirectory() as directory:
        top = Path(directory)
        sizes(top)
        many(top)
        writing(top)


def sizes(top):
    print("\nOne run with one curve: to the first curve, again (zoomed in), memory of the server")
    for count in SIZES:
        walk = np.cumsum(np.random.default_rng(0).normal(size=count)).astype(np.float32)
        for name, (write, show) in SHOWN.items():
            if count > SLOW_TO_WRITE and name != "spoolax view":
                continue
            place = top / f"{count}-{name.replace(' ', '-')}"
            place.mkdir()
            write(place, walk)
            first, again, size = show(place, count)
            zoomed = "" if again is None else _time(again)
            print(f"  {count:>10} points  {name:<14} {_time(first):>9} {zoomed:>9} {size:>7.0f} MB")


def many(top):
    place = top / "many"
    place.mkdir()
    keys = [f"group{i % 4}/key{i}" for i in range(KEYS)]
    steps, wave = np.arange(POINTS), np.sin(np.arange(POINTS) / 5000).astype(np.float32)
    for number in range(RUNS):
        values = dict.fromkeys(keys, wave * number)
        with SaveLogger(place / f"run-{number:02}.h5") as logger:
            logger.log_many(
                spoolax.LogDict(values, steps={"step": dict.fromkeys(keys, steps)}, stacked=keys)
            )
    print(f"\n{RUNS} runs with {KEYS} curves of {POINTS} points each")
    with viewing(place) as (ask, server, begun):
        runs = ",".join(run["id"] for run in ask("runs")["runs"])
        listed = time.perf_counter() - begun
        ask("keys", runs=runs)
        known = time.perf_counter() - begun
        times = []
        for key in keys[:6]:
            start = time.perf_counter()
            ask("lines", runs=runs, key=key, points=1000)
            times.append(time.perf_counter() - start)
        print(f"  the list of runs after {_time(listed)}, their keys after {_time(known)}")
        print(f"  a panel of {RUNS} curves: {_time(statistics.median(times))}")
        print(f"  memory of the server: {memory(server):.0f} MB")


def writing(top):
    """What a page that follows a run costs the program that writes it."""

    def write(path):
        start = time.perf_counter()
        with SaveLogger(path) as logger:
            for i in range(50_000):
                logger.log({"loss": 1.0 / (1 + i), "rate": 0.1}, i)
        return time.perf_counter() - start

    place = top / "written"
    place.mkdir()
    alone, followed = [], []
    with viewing(place) as (ask, _, _):
        for number in range(5):
            alone.append(write(top / f"alone-{number}.h5"))
            is_over = threading.Event()

            def follow(over=is_over):
                while not over.wait(1.0):  # As often as a page does.
                    for run in ask("runs")["runs"][:1]:
                        with contextlib.suppress(urllib.error.HTTPError):
                            ask("lines", runs=run["id"], key="loss", points=1000)

            follower = threading.Thread(target=follow)
            follower.start()
            followed.append(write(place / f"followed-{number}.h5"))
            is_over.set()
            follower.join()
    ratio = statistics.median(b / a for a, b in zip(alone, followed, strict=True))
    print(f"\nWriting 50000 entries while a page follows: {ratio:.2f}x of writing them alone")


@contextlib.contextmanager
def served(command, **options):
    """Start a server in a process of its own, and end it."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **options
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def memory(process):
    """Megabytes of a server and what it has started."""
    one = psutil.Process(process.pid)
    each = [one, *one.children(recursive=True)]
    return sum(some.memory_info().rss for some in each) / 1e6


def answer(address):
    with urllib.request.urlopen(address, timeout=60) as found:
        return found.read()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def until(call):
    """Call until it returns something, and return that."""
    start = time.perf_counter()
    while time.perf_counter() - start < PATIENCE:
        with contextlib.suppress(OSError, ValueError):
            found = call()
            if found:
                return found
        time.sleep(0.02)
    raise TimeoutError("The server did not answer.")


@contextlib.contextmanager
def viewing(place):
    begun = time.perf_counter()
    command = [sys.executable, "-m", "spoolax", "view", str(place), "--no-open", "-p", "0"]
    with served(command) as process:
        url = process.stdout.readline().split(" at ")[-1].strip()
        base, _, token = url.partition("?token=")

        def ask(what, **asked):
            query = urllib.parse.urlencode({**asked, "token": token})
            return json.loads(answer(f"{base}api/{what}?{query}"))

        yield ask, process, begun


def _view_write(place, walk):
    with SaveLogger(place / "a.h5") as logger:
        steps = {"step": {"walk": np.arange(len(walk))}}
        logger.log_many(spoolax.LogDict({"walk": walk}, steps=steps, stacked=["walk"]))


def _view_show(place, count):
    with viewing(place) as (ask, process, begun):
        (run,) = ask("runs")["runs"]
        asked = {"runs": run["id"], "key": "walk", "points": 1000}
        ask("lines", **asked)
        first = time.perf_counter() - begun
        times = []
        for part in range(5):
            window = {"from": part * count / 10, "to": (part + 5) * count / 10}
            start = time.perf_counter()
            ask("lines", **asked, **window)
            times.append(time.perf_counter() - start)
        return first, statistics.median(times), memory(process)


def _tensorboard_write(place, walk):
    import tensorboardX

    with tensorboardX.SummaryWriter(str(place)) as writer:
        for i, value in enumerate(walk.tolist()):
            writer.add_scalar("walk", value, i)


def _tensorboard_show(place, count):
    port = free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(place)]
    begun = time.perf_counter()
    with served([*command, "--port", str(port), "--host", "127.0.0.1"]) as process:
        address = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?tag=walk&run=."

        def all_of_it():
            points = json.loads(answer(address))
            return points if points and points[-1][1] == count - 1 else None

        until(all_of_it)
        return time.perf_counter() - begun, None, memory(process)


def _trackio_write(place, walk):
    code = """if True:
        import sys, numpy, trackio
        run = trackio.init(project="bench", embed=False)
        for i, value in enumerate(numpy.load(sys.argv[1]).tolist()):
            trackio.log({"walk": value}, step=i)
        trackio.finish()
    """
    np.save(place / "walk.npy", walk[:SMALL])
    environment = {**os.environ, "TRACKIO_DIR": str(place)}
    subprocess.run(
        [sys.executable, "-c", code, str(place / "walk.npy")],
        env=environment,
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )


SMALL = 10_000  # Trackio takes about a millisecond an entry.


def _trackio_show(place, count):
    del count
    port = free_port()
    environment = {**os.environ, "TRACKIO_DIR": str(place), "GRADIO_SERVER_PORT": str(port)}
    code = "import trackio; trackio.show(project='bench', open_browser=False)"
    begun = time.perf_counter()
    with served([sys.executable, "-c", code], env=environment) as process:
        until(lambda: answer(f"http://127.0.0.1:{port}/"))
        return time.perf_counter() - begun, None, memory(process)


SHOWN = {
    "spoolax view": (_view_write, _view_show),
    "TensorBoard": (_tensorboard_write, _tensorboard_show),
    "Trackio": (_trackio_write, _trackio_show),
}
