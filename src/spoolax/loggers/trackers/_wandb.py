"""Weights & Biases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..._extras import load
from ...errors import LogValueError
from .._protocol.ending import Ending
from ._arguments import parameters_of
from ._rows.row import TrackerRow
from ._tracker import TrackerLogger
from ._unique_names import UniqueNames

EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 255}  # As wandb has them itself.


class WandbLogger(TrackerLogger):
    """Logs to Weights & Biases, without the network unless told otherwise.

    It takes the arguments of `TrackerLogger`, and those of `wandb.init`. The default `mode` is what
    the environment variable `WANDB_MODE` says, or else "offline": the run is written to the
    directory `wandb`, and `wandb sync` uploads it.

    Steps are logged as values, and every value is drawn over its step (`define_metric`), so they
    may come in any order.

    Examples:
        >>> logger = WandbLogger(project="demo", name="first", config={"lr": 1e-3})
        >>> logger.project
        'demo'
    """

    title = "wandb"
    most = 1  # Rows before one that fails must not be sent again.
    lag = 20.0  # Its process writes to the disk every 15 seconds.
    modes = ("offline", "online", "disabled", "shared")
    _attempts = 0

    def load(self) -> None:
        """Import wandb, and make sure that it can log in."""
        self._wandb = load("wandb", "WandbLogger", "wandb")
        self.check_known(parameters_of(self._wandb.init), "wandb.init")
        self._mode = self.mode or os.environ.get("WANDB_MODE", "offline")
        place = self.directory or os.environ.get("WANDB_DIR") or Path()
        self._here = Path(place).expanduser().absolute()
        try:
            self._wandb.Settings(
                project=self.project, run_id=self.run_id, run_tags=tuple(self.tag_list)
            )
        except (ValueError, self._wandb.errors.UsageError) as error:
            raise LogValueError(
                f"wandb does not accept the arguments of WandbLogger: {error}"
            ) from None
        if self._mode in ("online", "shared") and not self._wandb.login(prompt=False, verify=False):
            raise LogValueError(
                f"WandbLogger was asked to be {self._mode}, but wandb has no API key. Run `wandb "
                "login` once, or set WANDB_API_KEY; or use `mode='offline'` and run `wandb sync` "
                "later."
            )
        self._names, self._drawn = UniqueNames(_free_name), set[str]()

    def arguments(self) -> dict[str, Any]:
        """Arguments that make such a logger again, whatever the environment says then."""
        return {**super().arguments(), "mode": self._mode}

    @property
    def run_id(self) -> str:
        """What identifies the run, to resume it."""
        # wandb takes an id that could not be opened for used until the process ends.
        is_ours = self._given_id is None and self.resume == "never"
        return super().run_id + (f"-{self._attempts}" if is_ours and self._attempts > 1 else "")

    def connect(self) -> None:
        """Open a run, next to others of this process."""
        self._attempts += 1
        # By default wandb tries for 90 seconds, and keeps the process alive until then.
        timeout = min(max(self._patience, 5.0), 90.0)
        # Tables of values for every seed would be too much.
        settings = {"init_timeout": timeout} | ({"quiet": True} if self._seed else {})
        self._run = self._wandb.init(
            **{
                "project": self.project,
                "name": self.name,
                "config": self.config,
                "tags": self.tag_list,
                "group": self.group,
                "id": self.run_id,
                "resume": None if self.resume == "never" else self.resume,
                "dir": self._here,
                "mode": self._mode,
                "reinit": "create_new",
                "settings": self._wandb.Settings(**settings),
                **self.options,
            }
        )

    def send(self, rows: list[TrackerRow]) -> None:
        """Log rows. wandb counts them itself."""
        for row in rows:
            values: dict[str, Any] = {**row.scalars, **row.texts}
            for name, counted in row.histograms.items():
                counts = (counted.counts, counted.edges)
                values[name] = self._wandb.Histogram(np_histogram=counts)
            for name, image in row.images.items():
                values[name] = self._wandb.Image(image)
            values = {self._names(name): value for name, value in values.items()}
            for name in values:
                if name not in self._drawn:
                    self._drawn.add(name)
                    self._draw_over(name, self._names(row.axis))
            steps = {self._names(name): at for name, at in row.steps.items()}
            self._run.log({**values, **steps, "_timestamp": row.time})

    def _draw_over(self, name: str, axis: str) -> None:
        if axis not in self._drawn:
            self._drawn.add(axis)
            self._run.define_metric(axis)
        if "*" not in name:  # Else wandb takes it for a pattern.
            self._run.define_metric(name, step_metric=axis)

    def finish(self, ending: Ending) -> None:
        """Close the run."""
        if ending.reason:
            self._run.summary["spoolax/reason"] = ending.reason
        self._run.finish(exit_code=EXIT_CODES[ending.status])

    def refuses(self, error: Exception) -> bool:
        """Say whether wandb will never accept what it got."""
        return super().refuses(error) or isinstance(error, self._wandb.errors.UsageError)

    def _native(self) -> Any:
        return self._run


def _free_name(name: str) -> str:
    """A name that wandb does not use for itself."""
    return f"value/{name}" if name.startswith("_") else name
