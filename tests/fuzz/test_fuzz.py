"""Random programs log what a plain-Python run of them logs, whatever they are nested in."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.checks import LISTENERS, check, check_watch
from fuzz.found import FOUND, FOUND_WITH
from fuzz.grammar import SPOOL, TAP, WATCH, options, programs

COUNT = os.environ.get("SPOOLAX_FUZZ")  # How many programs; without it, few, always the same.

pytestmark = pytest.mark.usefixtures("unoptimized")

SETTINGS = settings(
    max_examples=int(COUNT or 8),
    deadline=None,
    derandomize=COUNT is None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("listener", LISTENERS)
def test_random_programs_log_what_plain_python_logs(listener):
    """Exactly the entries that happened, once, in order, with the output unchanged."""

    drawn = programs(always=("tap",) if listener == "nobody" else ())
    how = {} if listener == "nobody" else SPOOL if "spool" in listener else TAP

    @SETTINGS
    @given(drawn, options(how), st.booleans())
    def logs_the_same(program, options, donated):
        check(program, listener, options, donated)

    logs_the_same()


@SETTINGS
@given(programs(leave_out=("spool", "tap")), options(WATCH))
def test_random_programs_are_watched(program, options):
    """Their outputs are the same, and the carries of loops are what plain Python says."""
    check_watch(program, options)


@pytest.mark.parametrize("listener", ["spool", "tap", "jit(tap)", "listening", "nobody"])
@pytest.mark.parametrize("name", FOUND)
def test_programs_that_went_wrong(name, listener):
    """Each needs what it is named for."""
    check(FOUND[name], listener)


@pytest.mark.parametrize("listener", ["spool", "jit(spool)", "tap", "jit(tap)"])
@pytest.mark.parametrize("name", FOUND_WITH)
def test_programs_that_went_wrong_with_options(name, listener):
    """Each needs what it is named for."""
    program, options = FOUND_WITH[name]
    check(program, listener, options)
