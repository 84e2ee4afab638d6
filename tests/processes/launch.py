"""Starts the processes of a program, on loopback, and collects what each of them returns."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

SECONDS = 240  # That all of them may take.
PROGRAMS = pathlib.Path(__file__).with_name("over_processes.py")


def start(program, count, *args, devices=2):
    """Start a program of `over_processes.py`, in so many processes with so many devices each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = f"--xla_force_host_platform_device_count={devices}"
    return [
        subprocess.Popen(
            [sys.executable, PROGRAMS, program, *map(str, (number, count, port)), json.dumps(args)],
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "NPROC": "8"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]


def ended(processes):
    """Wait for processes; return their exit codes, and what they wrote to both streams."""
    try:
        written = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
    return [process.returncode for process in processes], written


def run(program, count, *args, devices=2):
    """Run a program; return what each process returns."""
    codes, written = ended(start(program, count, *args, devices=devices))
    assert codes == [0] * count, "\n".join(err[-3000:] for _, err in written)
    return [json.loads(out.splitlines()[-1]) for out, _ in written]
