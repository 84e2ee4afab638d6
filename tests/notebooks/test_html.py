"""What notebooks show while cells run, and keep when they are saved."""

import pytest
from notebooks import executed, html_of, text_of

pytestmark = pytest.mark.once

SETUP = """
    import jax, jax.numpy as jnp, numpy as np, spoolax

    @jax.jit
    def train_step(x):
        spoolax.log({"loss": x**2, "weights": jnp.arange(3.0) * x})
        return 0.9 * x
"""


def test_runs_and_loggers_are_shown_as_html(tmp_path):
    notebook = executed(
        tmp_path,
        SETUP,
        """
        with spoolax.run("notebook", {"rate": 0.1}, total=50) as run:
            x = 1.0
            for _ in range(50):
                x = train_step(x)
        """,
        "spoolax.open(run.path)",
        'spoolax.open(run.path).plot("loss", log_y=True)',
        "spoolax.runs()",
        """
        with spoolax.listening(collect=True) as logs:
            for _ in range(9):
                x = train_step(x)
        logs
        """,
        """
        from spoolax.loggers import PlotLogger
        with PlotLogger("loss.png", "loss") as logger, logger.listening():
            for _ in range(9):
                x = train_step(x)
        """,
        """
        from spoolax.fit import curve_fit, curve_fit_batch
        xs = np.linspace(0, 1, 20)
        model = lambda x, a, b: a * jnp.exp(-b * x)
        curve_fit(model, xs, 2 * np.exp(-xs), history=True)
        """,
        "curve_fit_batch(model, xs, np.stack([np.exp(-xs), 2 * np.exp(-xs)]))",
    )
    _, live, opened, plotted, listed, logs, drawn, fit, batch = notebook.cells
    assert html_of(live).count("<table") == 1  # It is replaced, and what is saved is the last.
    assert "100%" in html_of(live)
    assert "50 of 50 steps" in html_of(live)
    assert "<svg" in html_of(live)
    assert "spoolax show runs/notebook-" in text_of(live)
    for cell, words in (
        (opened, ("finished", "loss", "weights", "<svg")),
        (listed, ("notebook-", "finished", "loss=")),
        (logs, ("float32[9]", "<svg")),
        (fit, ("parameter", "±", "cost", "<svg")),
        (batch, ("2 fits", "median", "<svg")),
    ):
        for word in words:
            assert word in html_of(cell), word
    for cell in (plotted, drawn):
        assert any("image/png" in output.get("data", {}) for output in cell.outputs)


def test_bars_are_there_when_the_notebook_is_saved(tmp_path):
    _, cell, lines = executed(
        tmp_path,
        SETUP,
        """
        @jax.jit
        def slow(x):
            return jax.lax.fori_loop(0, 2000, lambda i, x: jnp.sin(x @ x / 300), x)

        with spoolax.progress():
            y = jax.block_until_ready(slow(jnp.eye(300)))
        """,
        """
        from spoolax.loggers import TqdmLogger
        with TqdmLogger(5) as logger:
            for i in range(5):
                logger.log({"x": i}, i)
        """,
    ).cells
    for one in (cell, lines):
        assert "width:100.0%" in html_of(one), html_of(one)
        assert not any(output.get("name") == "stderr" for output in one.outputs)
