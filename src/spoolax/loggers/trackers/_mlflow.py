"""MLflow."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..._extras import load
from ..._tap.sinks import reports
from ...errors import LogValueError, MissingExtraError
from .._protocol.ending import Ending
from ._config import flat_config
from ._rows.row import TrackerRow, steps_to_log
from ._tracker import TrackerLogger
from ._unique_names import UniqueNames

MOST_METRICS = 1000  # That MLflow takes in one call,
MOST_PARAMS = 100  # and parameters.
# Tags.
RUN_ID = "spoolax.run_id"
UNIQUE = "spoolax.unique"
LAST_TIME = "spoolax.until"
REASON = "spoolax.reason"
MOST_TAG = 5000  # Characters.
STATUSES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
SQLITE = "sqlite:///"
REFUSED = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "BAD_REQUEST"}


class MlflowLogger(TrackerLogger):
    """Logs to MLflow: to a database on this machine, or to a server.

    It takes the arguments of `TrackerLogger`, and `tracking_uri`, `artifact_location` and
    `description`. The default `tracking_uri` is what the environment variable `MLFLOW_TRACKING_URI`
    says; or else, and always if `mode` is "offline", the database `mlflow.db` in the directory.
    `run_id` is one of MLflow's, or a name of your own, which becomes a tag.

    MLflow draws over a single integer step; other steps become metrics. It has no infinities: they
    become the largest numbers there are, 1.8e308. Histograms become files in `histograms`, and
    metrics of their mean, smallest and largest number.

    Examples:
        >>> logger = MlflowLogger(experiment="demo", name="first", config={"lr": 1e-3})
        >>> logger.project
        'demo'
    """

    title = "MLflow"
    distinct_times = True  # It takes equal metrics of one step and time for one.

    def load(self) -> None:
        """Import MLflow, and find out where to log."""
        self.check_known(["tracking_uri", "artifact_location", "description"], "MLflow")
        self._mlflow = load("mlflow", "MlflowLogger", "mlflow")
        self._entities = load("mlflow.entities", "MlflowLogger", "mlflow")
        self._uri, self._artifacts = self._locations()
        if '"' in self.run_id:
            raise LogValueError(
                f"MLflow cannot search for the run {self.run_id!r}: leave out the quote."
            )
        if self._uri.startswith("http"):
            # MLflow would retry for minutes, and we retry ourselves. Only this variable stops it.
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        else:
            # MLflow would import this while it opens the run, which takes seconds.
            with contextlib.suppress(MissingExtraError):
                load("mlflow.store.tracking.sqlalchemy_store", "MlflowLogger", "mlflow")
            if self.given_patience is None:
                self._patience = 120.0  # It may have to create its database first.
        self._names, self._image_names = UniqueNames(_metric_name), UniqueNames(_image_name)
        self._last_time = 0  # Of the rows of the run, in milliseconds.
        self._shift: int | None = None  # Milliseconds added to the times of our rows.
        self._sent_images: set[tuple[str, int, int]] = set()  # Of rows that may be sent again.

    def _locations(self) -> tuple[str, str | None]:
        """Where metrics go; and where files go, if that is for us to say."""
        asked = os.fspath(self.options.get("tracking_uri") or "")
        given = asked or os.environ.get("MLFLOW_TRACKING_URI", "")
        artifacts = self.options.get("artifact_location")
        if self.mode == "online" and not given:
            raise LogValueError(
                "MlflowLogger was asked to be online, but has no server. Give it a "
                "`tracking_uri`, such as 'http://localhost:5000', or set MLFLOW_TRACKING_URI."
            )
        if self.mode == "offline" and asked and not asked.startswith("sqlite:"):
            raise LogValueError(
                "MlflowLogger was asked to be offline, but also has a server: "
                f"`tracking_uri={asked!r}`. Leave out one of the two."
            )
        if asked or (given and self.mode != "offline"):
            uri = given
            scheme = urllib.parse.urlsplit(uri).scheme
            if scheme in ("", "file") and uri != "databricks":
                path = urllib.parse.urlsplit(uri).path
                raise LogValueError(
                    f"`tracking_uri={uri!r}` asks for runs in plain files, which MLflow no longer "
                    f"supports. Use a database: 'sqlite:///{path}.db'."
                )
            if uri.startswith(SQLITE):  # The working directory may change.
                uri = SQLITE + os.path.abspath(uri.removeprefix(SQLITE))
            return uri, artifacts
        directory = (self.directory or Path()).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        artifacts = artifacts or (directory / "mlruns" / _file_name(self.project)).as_uri()
        return f"{SQLITE}{directory / 'mlflow.db'}", artifacts

    def arguments(self) -> dict[str, Any]:
        """Arguments that make such a logger again, whatever the environment says then."""
        where = {"tracking_uri": self._uri, "artifact_location": self._artifacts, "mode": None}
        return {**super().arguments(), **where}

    def connect(self) -> None:
        """Find the experiment and the run, or create them."""
        self._check_server()
        self._client = client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        experiment = client.get_experiment_by_name(self.project)
        if experiment is None:
            # Else MLflow takes it for one of language models, and shows no curves.
            kind = {"mlflow.experimentKind": "custom_model_development"}
            number = client.create_experiment(self.project, self._artifacts, kind)
        else:
            number = experiment.experiment_id
        run = self._find(number)
        if run is None and self.resume == "must":
            raise ValueError(f"there is no run {self.run_id!r} in {self.project!r} to resume")
        if run is None:
            tags = {tag: value or "true" for tag, value in self.tags.items()}
            tags |= {RUN_ID: self.run_id, UNIQUE: self.unique}
            if self.group:
                tags["group"] = self.group
            if "description" in self.options:
                tags["mlflow.note.content"] = self.options["description"]
            run = client.create_run(number, run_name=self.name, tags=tags)
        else:
            client.update_run(run.info.run_id, status="RUNNING")
            if REASON in run.data.tags:  # Why it ended before.
                client.delete_tag(run.info.run_id, REASON)
        self._number = run.info.run_id
        self._last_time = int(run.data.tags.get(LAST_TIME, 0))
        self._log_params(run.data.params)

    def _find(self, experiment: str) -> Any:
        """The run, if it exists: also if we created it, and the answer was lost."""
        filters = [f'tags.`{UNIQUE}` = "{self.unique}"']
        if self.resume != "never":
            filters += [
                f'tags.`{RUN_ID}` = "{self.run_id}"',
                f'attributes.run_name = "{self.run_id}"',
            ]
        for one in filters:
            if found := self._client.search_runs([experiment], one):
                return found[0]
        if self.resume == "never":
            return None
        try:
            return self._client.get_run(self.run_id)
        except self._mlflow.MlflowException as error:
            if error.error_code in REFUSED:
                return None
            raise

    def _log_params(self, existing: dict[str, str]) -> None:
        flat = {_metric_name(k): str(v)[:6000] for k, v in flat_config(self.config).items()}
        changed = [name for name, value in existing.items() if flat.get(name, value) != value]
        if changed:
            reports.warning(
                "MLflow keeps the first value of a parameter, so these stay as they were: %s.",
                changed,
            )
        params = [self._entities.Param(k, v) for k, v in flat.items() if k not in existing]
        for start in range(0, len(params), MOST_PARAMS):
            some = params[start : start + MOST_PARAMS]
            self._client.log_batch(self._number, params=some, synchronous=True)

    def send(self, rows: list[TrackerRow]) -> None:
        """Send many metrics in one call, which is much faster than one by one."""
        self._check_server()
        client, run = self._client, self._number
        moments = [(_step(row), self._time_of(row)) for row in rows]
        metrics = [
            self._entities.Metric(name, number, at, step)
            for row, (step, at) in zip(rows, moments, strict=True)
            for name, number in self._metrics(row)
        ]
        for start in range(0, len(metrics), MOST_METRICS):
            some = metrics[start : start + MOST_METRICS]
            client.log_batch(run, metrics=some, synchronous=True)
        for row, (step, at) in zip(rows, moments, strict=True):
            self._send_files(row, step, at)
        self._sent_images -= {image for image in self._sent_images if image[1:] in moments}

    def _time_of(self, row: TrackerRow) -> int:
        """The time of a row in milliseconds: after all rows that the run had when it was opened."""
        now = round(1000 * row.time)
        if self._shift is None:
            self._shift = max(0, self._last_time + 1 - now)
        self._last_time = max(self._last_time, now + self._shift)
        return now + self._shift

    def _metrics(self, row: TrackerRow) -> Iterator[tuple[str, float]]:
        for name, number in (row.scalars | steps_to_log(row)).items():
            yield self._names(name), float(number)
        for name, counted in row.histograms.items():
            mean = counted.total / max(sum(counted.counts), 1)
            for label, number in {"mean": mean, "min": counted.low, "max": counted.high}.items():
                yield self._names(f"{name}/{label}", kind="histogram"), number

    def _send_files(self, row: TrackerRow, step: int, at: int) -> None:
        client, run = self._client, self._number
        place = f"{step:08}-{at}"  # No other row has both.
        for name, text in row.texts.items():
            client.log_text(run, text, f"texts/{self._names(name)}/{place}.txt")
        for name, counted in row.histograms.items():
            content = {"step": step, **counted._asdict()}
            client.log_dict(run, content, f"histograms/{self._names(name)}/{place}.json")
        for name, image in row.images.items():
            key = self._image_names(name)
            if (key, step, at) not in self._sent_images:  # Else it would be there twice.
                client.log_image(run, image, key=key, step=step, timestamp=at, synchronous=True)
                self._sent_images.add((key, step, at))

    def finish(self, ending: Ending) -> None:
        """Say how the run ended."""
        self._check_server()
        if self._last_time > 1000 * time.time():  # For whoever resumes it.
            self._client.set_tag(self._number, LAST_TIME, self._last_time)
        if ending.reason:
            self._client.set_tag(self._number, REASON, ending.reason[:MOST_TAG])
        self._client.set_terminated(self._number, STATUSES[ending.status])

    def refuses(self, error: Exception) -> bool:
        """Say whether MLflow will never accept what it got; anything else may pass."""
        code = getattr(error, "error_code", None)
        if code is not None:
            return code in REFUSED
        return super().refuses(error) or getattr(error, "errno", None) == errno.ENAMETOOLONG

    def _check_server(self) -> None:
        """Raise an error if the server is away: MLflow itself would wait for two minutes."""
        url = urllib.parse.urlsplit(self._uri)
        proxies = urllib.request.getproxies()
        if url.scheme not in ("http", "https") or (
            url.scheme in proxies and not urllib.request.proxy_bypass(url.hostname or "")
        ):
            return
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            socket.create_connection((url.hostname or "", port), timeout=5).close()
        except OSError as error:
            raise ConnectionError(
                f"{url.scheme}://{url.netloc} does not answer: {error}"
            ) from error

    def _native(self) -> Any:
        return self._client.get_run(self._number)


def _metric_name(name: str) -> str:
    """A name that MLflow accepts for metrics; it may have slashes."""
    clean = re.sub(r"[^\w.\- :/]", "_", name).encode()[:240].decode(errors="ignore")
    return "/".join(part for part in clean.split("/") if part.strip(".")) or "_"


def _image_name(name: str) -> str:
    """A name that MLflow accepts for images."""
    return re.sub(r"[^\w.\- /]", "_", _metric_name(name), flags=re.ASCII)


def _step(row: TrackerRow) -> int:
    step = int(row.step)
    if not -(2**63) <= step < 2**63:
        raise ValueError(f"{step} is too large to be a step in MLflow")
    return step


def _file_name(name: str) -> str:
    """A name without what files may not have in theirs."""
    return re.sub(r"[^\w.-]+", "-", name)
