"""Strict settings for JAX, two devices, and what tests can ask for."""

import os

os.environ["SPOOLAX_DISABLE_PERSISTENT_CACHE"] = "1"  # What users have is theirs.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=2"]
)
# XLA's threads, else one per core: with as few of them as devices, JAX 0.10.0 may wait for ever
# when many programs with collectives have been started.
os.environ["NPROC"] = "8"

import signal

import hypothesis
import jax
import pytest

# Shells start what runs in the background with Ctrl-C ignored, which would be inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("spoolax", deadline=None)  # The machine may be busy.
hypothesis.settings.load_profile("spoolax")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "once: does not depend on the version of JAX, so CI runs it on one of them"
    )


@pytest.fixture(autouse=True)
def _doctests_have_standard_promotion(request):
    """Users' settings are JAX's own, so that is what examples in the docs are run with."""
    if isinstance(request.node, pytest.DoctestItem):
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            yield
    else:
        yield


@pytest.fixture
def unoptimized():
    """Compile quickly, for tests of what a program does rather than of its bits or speed."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
