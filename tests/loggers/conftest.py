"""Loggers see what programs log; how these are optimized makes no difference to them."""

import pytest


@pytest.fixture(autouse=True)
def _compile_quickly(unoptimized):
    return unoptimized
