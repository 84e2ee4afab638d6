"""Programs, loggers and files that several tests of loggers use."""

import io

from jax import lax

import spoolax


def count(n):
    """A program that logs the numbers below n, and their squares apart."""

    def body(i, _):
        spoolax.log({"i": i}, step=i)
        spoolax.log({"square": i * i}, step=i)
        return i + 1, None

    return lax.scan(body, 0, length=n)[0]


def five():
    return count(5)


class Spy(spoolax.Logger):
    """Says what happens to it."""

    def __init__(self, name, told, fails=()):
        self.name, self.told, self.fails = name, told, fails

    def tell(self, what):
        self.told.append(f"{self.name} {what}")
        if what.split()[0] in self.fails:
            raise ValueError(f"{self.name} {what}")

    def __enter__(self):
        self.tell("enters")

    def log(self, state, step):
        self.tell(f"logs {step}")

    def __exit__(self, kind, error, trace):
        self.tell("exits" if error is None else f"exits with {error}")


class Terminal(io.StringIO):
    def isatty(self):
        return True
