"""Lines of delivery: they take turns, keep their order, and outlive the worker."""

import os
import subprocess
import sys
import textwrap
import threading
import time
import types

import jax
import jax.numpy as jnp
import pytest

import spoolax
from spoolax._tap.host import host
from spoolax._tap.lines import Chunk, Lines
from spoolax._tap.sinks import Sink
from spoolax.loggers import CompositeLogger, RingBufferLogger
from spoolax.loggers._protocol.writer import WritingLogger
from spoolax.storage import HDF5StorageWriter, WriterGroupConfig

pytestmark = pytest.mark.usefixtures("unoptimized")


class Late:
    """An array that is ready when we say so."""

    def __init__(self):
        self.done = False

    def is_ready(self):
        return self.done


def count_up(x, length=100):
    def body(x, _):
        spoolax.log({"x": x})
        return x + 1, None

    return jax.lax.scan(body, x, length=length)[0]


def wait_until(condition, seconds=20):
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def run(source, *args, **env):
    """Run a program of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split()


def test_what_waits_for_the_device_does_not_keep_others_waiting():
    """But what is for the same callback comes after it."""
    first, second, late = [], [], Late()
    host.post(Sink(first.append), "slow", arrays=[late])
    host.post(Sink(first.append), "after it")
    host.post(Sink(second.append), "fast")
    wait_until(lambda: second)
    time.sleep(0.05)
    assert not first
    late.done = True
    host.flush()
    assert first == ["slow", "after it"]


def test_a_pile_pauses_at_the_row_that_is_not_ready():
    """Rows that were queued together are delivered one by one, as the device makes them."""
    seen, other, lates = [], [], [Late() for _ in range(10)]
    sink = Sink(seen.append)
    for i, late in enumerate(lates):
        host.post(sink, i, arrays=[late])
    for i, late in enumerate(lates):
        late.done = True
        wait_until(lambda i=i: len(seen) == i + 1)
        host.post(Sink(other.append), i)
        wait_until(lambda i=i: len(other) == i + 1)
    assert seen == other == list(range(10))


def test_without_waiting_everything_is_delivered_in_the_order_it_came():
    """Also what is for different callbacks."""
    seen = []

    def one(x):
        seen.append(x)

    def other(x):
        seen.append(x)

    sinks = [Sink(one), Sink(other)]
    for i in range(200):
        host.post(sinks[i % 2], i)
    host.flush()
    assert seen == list(range(200))


def test_a_slow_callback_does_not_keep_others_waiting_for_long():
    """It has thousands of entries to come, and one of another program is delivered meanwhile."""
    slow, quick = [], []

    def callback(logs):
        time.sleep(0.002)
        slow.append(int(logs["x"]))

    spoolax.tap(lambda x: count_up(x, 2000), callback)(0)
    wait_until(lambda: slow)
    for i in range(3):
        host.post(Sink(quick.append), i)
        wait_until(lambda i=i: len(quick) == i + 1)
        assert len(slow) < 1000
    spoolax.flush()
    assert slow == list(range(2000))
    assert quick == [0, 1, 2]


def test_a_logger_gets_states_and_entries_in_order(tmp_path):
    """The state comes first though the device is slower than the program that follows."""

    @jax.jit
    def slow(x):
        return jax.lax.fori_loop(0, 300, lambda _, x: jnp.tanh(x @ x), x)

    x = jnp.ones((200, 200))
    slow(x)
    ring, first = RingBufferLogger(1000), {"x": jnp.float32(0)}
    schema = {"x": WriterGroupConfig(lambda state: state["x"])}
    writer = HDF5StorageWriter(tmp_path / "a.h5", schema, first)
    with CompositeLogger(ring, writer) as logger:
        logger.log({"x": slow(x)[0, 0]}, -1)
        logger.tap(count_up)(0.0)
        logger.log(first, 100)
    steps = [-1, *range(100), 100]
    assert [record.step for record in ring.records] == steps
    with spoolax.open(tmp_path / "a.h5") as reader:
        assert reader.steps("x").tolist() == steps


def test_a_slow_logger_gets_states_after_the_entries_that_came_before():
    """Though it has had its slice of time, and waits for the next one."""
    steps = []

    class Slow(WritingLogger):
        def write(self, record):
            time.sleep(0.001)
            steps.append(record.step)

    with CompositeLogger(CompositeLogger(Slow().every(1))) as logger:
        logger.tap(lambda x: count_up(x, 300))(0)
        logger.log({"x": 0}, 300)
    assert steps == list(range(301))


def test_effects_barrier_waits_for_delivery():
    """As it does for the callbacks of JAX."""
    seen = []

    def slow(logs):
        time.sleep(0.001)
        seen.append(logs)

    for f in (spoolax.tap(count_up, slow), jax.jit(spoolax.tap(count_up, slow))):
        seen.clear()
        f(0)
        jax.effects_barrier()
        assert len(seen) == 100


def test_effects_barrier_in_a_callback_returns():
    """It would wait for itself."""
    seen = []

    def callback(logs):
        jax.effects_barrier()
        seen.append(logs)

    spoolax.tap(count_up, callback)(0)
    spoolax.flush()
    assert len(seen) == 100


OUTLIVES = """
    import sys, threading, time
    import jax, jax.numpy as jnp
    import spoolax
    from spoolax.loggers import *
    from spoolax.storage import *

    def f(x):
        def body(x, i):
            spoolax.log({"x": x}, step=i)
            return x + 1, None
        return jax.lax.scan(body, x, jnp.arange(100))[0]

    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    def outlive():
        threading.main_thread().join()
        if sys.argv[2] == "refused":  # As some versions of Python do.
            threading.Thread.start = refuse
        train(sys.argv[1])
"""

refused = pytest.mark.parametrize("threads", ["refused", "allowed"])


@refused
def test_a_thread_that_outlives_the_main_thread_delivers_what_it_taps(threads):
    """Also inside of `jit`, from callbacks, and what it does not wait for."""
    source = """
    def train(path):
        seen, inner, numbers = [], [], []
        spoolax.tap(f, seen.append)(0)
        spoolax.flush()
        print(len(seen))
        jax.block_until_ready(jax.jit(spoolax.tap(f, seen.append))(0))
        spoolax.flush()
        print(len(seen))

        def callback(logs):
            numbers.append(float(jnp.sin(logs["x"])))
            if len(numbers) == 1:
                spoolax.tap(f, inner.append)(0)

        spoolax.tap(f, callback)(0.0)
        spoolax.flush()
        print(len(numbers), len(inner))
        spoolax.progress(f, file=sys.stderr)(0)
        spoolax.tap(f, left.append)(0)

    class Left(list):
        def append(self, logs):
            print(int(logs["x"]))

    left = Left()
    threading.Thread(target=outlive).start()
    """
    out = run(textwrap.dedent(OUTLIVES) + textwrap.dedent(source), "", threads)
    assert out[:4] == ["100", "200", "100", "100"]
    assert out[-100:] == [str(i) for i in range(100)]


@refused
def test_a_thread_that_outlives_the_main_thread_writes_its_files(threads, tmp_path):
    """And it sends its rows and messages."""
    pytest.importorskip("h5py")
    source = """
    import http.server
    from spoolax.loggers.trackers._tracker import TrackerLogger

    rows, messages = [], []

    class Tracker(TrackerLogger):
        def send(self, some):
            rows.extend(some)

    class Server(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            messages.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def train(path):
        with JsonlLogger(path + "/a.jsonl") as logger:
            logger.tap(f)(0)
            for i in range(5):
                logger.log({"x": jnp.float32(i)}, 100 + i)
        print(len(list(read_jsonl(path + "/a.jsonl"))))
        with SaveLogger(path + "/b.h5") as logger:
            logger.tap(f)(0)
            logger.log({"y": 1.0}, 100)
        print(len(spoolax.load(path + "/b.h5")["x"]))
        x = jnp.ones(3)
        writer = HDF5StorageWriter(path + "/c.h5", {"x": WriterGroupConfig(lambda x: x)}, x)
        both = CompositeLogger(writer, TqdmLogger(20))
        spoolax.simulate(lambda key, x: x + 1, x, 20, key=jax.random.key(0), logger=both)
        with spoolax.open(path + "/c.h5") as reader:
            print(len(reader.focus_group("x")), reader.status)
        with Tracker(directory=path) as logger:
            logger.tap(f)(0)
        print(len(rows))
        url = f"http://127.0.0.1:{server.server_port}"
        with WebhookLogger(url, when=lambda values: values["x"] > 0) as logger:
            logger.log({"x": 1}, 0)
        print(len(messages))
        seeded = SaveLogger(path + "/d.h5")
        seeded.__enter__()  # It is not closed.
        seeded.tap(f)(0)

    threading.Thread(target=outlive).start()
    """
    out = run(textwrap.dedent(OUTLIVES) + textwrap.dedent(source), tmp_path, threads)
    assert out == ["105", "100", "20", "finished", "100", "1"]
    assert len(spoolax.load(tmp_path / "d.h5")["x"]) == 100


def test_what_is_logged_at_exit_is_delivered():
    """By handlers that run after ours, as they were registered before."""
    out = run(
        """
        import atexit

        @atexit.register
        def last():
            spoolax.tap(f, lambda logs: print(int(logs["x"])))(3)
            with spoolax.loggers.PrintLogger() as logger:
                logger.log({"y": jax.numpy.float32(5)}, 7)

        import jax, spoolax

        def f(x):
            spoolax.log({"x": x})
            return x

        spoolax.tap(f, lambda logs: None)(0)
        """
    )
    assert out == ["3", "step", "7", "y=5"]


@pytest.fixture
def no_worker():
    host.close()
    yield
    host._alone = False  # The next program starts another one.


@pytest.mark.usefixtures("no_worker")
def test_threads_that_deliver_without_a_worker_do_so_one_at_a_time():
    """And none of them is stuck, or delivers something twice or out of order."""
    busy, seen = threading.Lock(), {i: [] for i in range(4)}

    def callback(logs):
        assert busy.acquire(blocking=False)
        seen[int(logs["x"]) // 1000].append(int(logs["x"]) % 1000)
        busy.release()

    def work(i):
        for _ in range(5):
            spoolax.tap(count_up, callback)(1000 * i)
            host.post(Sink(lambda logs: None), None)

    threads = [threading.Thread(target=work, args=(i,)) for i in seen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    spoolax.flush()
    assert seen == {i: list(range(100)) * 5 for i in seen}


def test_a_line_that_belonged_to_a_sink_which_is_gone_is_not_mistaken_for_it():
    """Sinks are told apart by numbers that Python uses again."""
    lines = Lines()

    def chunk(number, line, group):
        sink = types.SimpleNamespace(line=line, group=group)
        return Chunk(types.SimpleNamespace(waited=True), sink, iter(()), 0, 1, 0.0, number=number)

    lines.append(chunk(1, "a", "gone"))
    lines.give_back(lines.take(), 0.0, True)
    first, second = chunk(2, "a", "loggers"), chunk(3, "b", "loggers")
    for one in (first, second):
        lines.append(one)
    assert first.line.share is second.line.share
