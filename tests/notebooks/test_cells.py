"""Cells that open and close blocks."""

import pytest
from notebooks import executed, text_of

pytestmark = pytest.mark.once


def test_cells_open_and_close_blocks(tmp_path):
    *_, printed, again, opened, inside, after, mistake, collected = executed(
        tmp_path,
        """
        import jax, spoolax

        @jax.jit
        def train_step(x):
            spoolax.log({"loss": x**2})
            return x / 2
        """,
        """
        x = 1.0
        with spoolax.listening():
            for _ in range(3):
                x = train_step(x)
        """,
        """
        with spoolax.listening():
            x = train_step(x)
        """,
        """
        seen = []
        block = spoolax.listening(seen.append)
        _ = block.__enter__()
        """,
        """
        for _ in range(2):
            x = train_step(x)
        """,
        """
        block.__exit__(None, None, None)
        x = train_step(x)
        print([int(logs.step["loss"]) for logs in seen])
        """,
        """
        try:
            with spoolax.listening(collect=True) as logs:
                x = train_step(x)
                1 / 0
        except ZeroDivisionError:
            print(logs["loss"].shape)
        """,
        """
        with spoolax.listening(collect=True) as logs:
            x = train_step(x)
        logs
        """,
    ).cells
    assert text_of(printed) == "step=0  loss=1\nstep=1  loss=0.25\nstep=2  loss=0.0625\n"
    assert text_of(again) == "step=0  loss=0.015625\n"
    assert text_of(opened) == text_of(inside) == ""
    assert text_of(after) == "[0, 1]\n"
    assert text_of(mistake) == "(1,)\n"
    assert text_of(collected).startswith("LogDict(\n  loss: float32[1]")


def test_a_cell_that_is_interrupted_leaves_no_block_open(tmp_path):
    *_, after = executed(
        tmp_path,
        """
        import _thread, jax, spoolax

        @jax.jit
        def train_step(x):
            spoolax.log({"loss": x**2})
            return x / 2
        """,
        """
        seen = []
        try:
            with spoolax.listening(seen.append):
                train_step(1.0)
                _thread.interrupt_main()
                while True:
                    train_step(1.0)
        except KeyboardInterrupt:
            pass
        """,
        """
        heard = len(seen)
        train_step(1.0)
        spoolax.flush()
        print(heard >= 1, len(seen) == heard)
        """,
    ).cells
    assert text_of(after) == "True True\n"
