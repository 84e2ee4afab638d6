"""Every logger keeps the contract."""

import io

import pytest
from logger_cases import Terminal

from spoolax import loggers, testing
from spoolax.testing import LoggerContract

pytestmark = pytest.mark.once


def entries(records):
    return [
        (record.step, {name: float(value) for name, value in record.values.items()})
        for record in records
    ]


class TestNullLogger(LoggerContract):
    def make(self, directory):
        return loggers.NullLogger()


class TestCapture(LoggerContract):
    def make(self, directory):
        return testing.capture()

    def read(self, logger):
        return entries(logger.records)


class TestRingBufferLogger(LoggerContract):
    def make(self, directory):
        return loggers.RingBufferLogger(100, directory / "last.jsonl")

    def read(self, logger):
        return entries(logger.records)


class TestJsonlLogger(LoggerContract):
    def make(self, directory):
        return loggers.JsonlLogger(directory / "log.jsonl")

    def read(self, logger):
        return [
            (
                line["_step"],
                {key: value for key, value in line.items() if key[0] != "_" and key != "step"},
            )
            for line in loggers.read_jsonl(logger.path)
        ]


class TestPrintLogger(LoggerContract):
    def make(self, directory):
        self.file = io.StringIO()
        return loggers.PrintLogger(file=self.file)

    def read(self, logger):
        return parsed(self.file.getvalue())

    def check_run(self, logger, expected):
        lines = self.file.getvalue().splitlines()
        mine = [line.replace(f"{logger.prefix}/", "") for line in lines if logger.prefix in line]
        assert parsed("\n".join(mine)) == expected


def parsed(text):
    found = []
    for line in text.splitlines():
        _, step, *words = line.split()
        found.append((int(step), {w.split("=")[0]: float(w.split("=")[1]) for w in words}))
    return found


class TestConsoleLoggerInABatchJob(TestPrintLogger):
    def make(self, directory):
        self.file = io.StringIO()
        return loggers.ConsoleLogger(every=1, file=self.file)


class TestConsoleLogger(LoggerContract):
    def make(self, directory):
        self.file = Terminal()
        return loggers.ConsoleLogger(file=self.file)

    def check(self, logger, expected):
        shown = self.file.getvalue()
        for name, value in expected[-1][1].items():
            assert name in shown
            assert f"{value:.5g}" in shown

    def check_run(self, logger, expected):
        assert f"{logger.prefix}/x" in self.file.getvalue()


class TestTqdmLogger(LoggerContract):
    def make(self, directory):
        self.file = Terminal()
        return loggers.TqdmLogger(5, file=self.file)

    def check(self, logger, expected):
        assert f"{len(expected)}/5" in self.file.getvalue()

    def test_can_be_thinned_out(self, tmp_path):
        """The steps in between count, too: they are over."""
        with self.make(tmp_path).every(2) as logger:
            for i in range(5):
                logger.log({"x": 1.0}, i)
        assert "5/5" in self.file.getvalue()


class TestTqdmLoggerInABatchJob(TestTqdmLogger):
    def make(self, directory):
        self.file = io.StringIO()
        return loggers.TqdmLogger(5, lambda state: {"x": state["x"]}, file=self.file)


class TestProfileLogger(LoggerContract):
    def make(self, directory):
        return loggers.ProfileLogger(directory, 10**6, 10**6)


class TestPythonLogger(LoggerContract):
    @pytest.fixture(autouse=True)
    def _records(self, caplog):
        caplog.set_level("INFO", "spoolax.run")
        self.caplog = caplog

    def make(self, directory):
        self.caplog.clear()
        return loggers.PythonLogger()

    def read(self, logger):
        mine = [r for r in self.caplog.records if r.name == "spoolax.run"]
        run = getattr(logger, "_extra", {}).get("run")
        return [
            (r.step, {name: float(x) for name, x in r.data.items()})
            for r in mine
            if getattr(r, "run", None) == run
        ]


class TestCheckLogger(LoggerContract):
    def make(self, directory):
        return loggers.CheckLogger(lambda state: state["x"] < 100)


class TestPlotLogger(LoggerContract):
    def make(self, directory):
        return loggers.PlotLogger(directory / "x.svg", "x")

    def read(self, logger):
        steps, values = logger._curves["x"].curve()
        assert logger.path.read_text().startswith("<?xml")
        return [(step, {"x": x}) for step, x in zip(steps, values, strict=True)]

    def check(self, logger, expected):
        super().check(logger, [(step, {"x": values["x"]}) for step, values in expected])


class TestCompositeLogger(LoggerContract):
    def make(self, directory):
        first, second = testing.capture(), loggers.JsonlLogger(directory / "log.jsonl")
        return loggers.CompositeLogger(first, second, loggers.NullLogger())

    def read(self, logger):
        first, second, _ = logger.loggers
        assert len(entries(first.records)) == len(list(loggers.read_jsonl(second.path)))
        return entries(first.records)


class TestThinnedLogger(LoggerContract):
    def make(self, directory):
        return testing.capture().every(1)

    def read(self, logger):
        return entries(logger.logger.records)


class ThreeMethods(loggers.Logger):
    """As a user writes one."""

    def __enter__(self):
        self.entries = []

    def log(self, state, step):
        self.entries.append((step, {name: float(state[name]) for name in state}))

    def __exit__(self, *error):
        self.closed = True


class TestALoggerOfThreeMethods(LoggerContract):
    def make(self, directory):
        return ThreeMethods()

    def read(self, logger):
        assert logger.closed
        return logger.entries


class Many(ThreeMethods):
    def log_many(self, logs):
        steps = logs.step["x"].tolist()
        self.entries += [(i, {"x": x}) for i, x in zip(steps, logs["x"].tolist(), strict=True)]


class TestALoggerOfManyEntries(TestALoggerOfThreeMethods):
    def make(self, directory):
        return Many()
