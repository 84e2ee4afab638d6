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
from ._config import flat_config
from ._names import Names
from ._rows import Row, other_steps
from ._tracker import TrackerLogger

AT_ONCE = 1000  # Metrics that MLflow takes in one call,
PARAMS = 100  # and parameters.
TAG = "spoolax.run_id"
UNIQUE = "spoolax.unique"
UNTIL = "spoolax.until"
SQLITE = "sqlite:///"
REFUSED = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", "INVALID_STATE", "BAD_REQUEST"}


class MlflowLogger(TrackerLogger):
    """Logs to MLflow: to a database on this machine, or to a server.

    The words are those of `TrackerLogger`, and `tracking_uri`, `artifact_location` and
    `description`. Without a `tracking_uri`, it is what the environment variable
    `MLFLOW_TRACKING_URI` says; or else, and always if `mode` is "offline", the database `mlflow.db`
    in the directory. `run_id` is one of MLflow's, or a word of your own, which becomes a tag.

    MLflow draws over one step, which is whole; other steps are metrics themselves. It has no
    infinities: they become the largest numbers there are, 1.8e308. Histograms are files in
    `histograms`, and metrics of their mean, smallest and largest number.

    Examples:
        >>> logger = MlflowLogger(experiment="demo", name="first", config={"lr": 1e-3})
        >>> logger.project
        'demo'
    """

    title = "MLflow"
    apart = True

    def load(self) -> None:
        """Import MLflow, and see where to log."""
        self.check_known(["tracking_uri", "artifact_location", "description"], "MLflow")
        self._mlflow = load("mlflow", "MlflowLogger", "mlflow")
        self._entities = load("mlflow.entities", "MlflowLogger", "mlflow")
        self._uri, self._artifacts = self._places()
        if '"' in self.run_id:
            raise LogValueError(
                f"MLflow cannot find a run by {self.run_id!r}: leave out the quote."
            )
        if self._uri.startswith("http"):
            # It would try for minutes, and we try again ourselves. There is no other way to say so.
            os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        else:
            # It would do that when the run is opened, for some seconds.
            with contextlib.suppress(MissingExtraError):
                load("mlflow.store.tracking.sqlalchemy_store", "MlflowLogger", "mlflow")
            if self.given_patience is None:
                self._patience = 120.0  # It may have to make its database first.
        self._names, self._image_names = Names(_clean), Names(_clean_image)
        self._until = 0  # When the last row of the run is said to be of, in milliseconds.
        self._shift: int | None = None  # How much later ours are said to be.
        self._filed: set[tuple[str, int, int]] = set()  # Images of rows that may be sent again.

    def _places(self) -> tuple[str, str | None]:
        """Where metrics go, and where files go, if that is ours to say."""
        asked = os.fspath(self.options.get("tracking_uri") or "")
        given = asked or os.environ.get("MLFLOW_TRACKING_URI", "")
        artifacts = self.options.get("artifact_location")
        if self.mode == "online" and not given:
            raise LogValueError(
                "MlflowLogger is to be online, but does not know where the server is. Give it a "
                "`tracking_uri`, such as 'http://localhost:5000', or set MLFLOW_TRACKING_URI."
            )
        if self.mode == "offline" and asked and not asked.startswith("sqlite:"):
            raise LogValueError(
                "MlflowLogger is to be offline, but was told of a server: "
                f"`tracking_uri={asked!r}`. Leave one of them out."
            )
        if asked or (given and self.mode != "offline"):
            uri = given
            scheme = urllib.parse.urlsplit(uri).scheme
            if scheme in ("", "file") and uri != "databricks":
                path = urllib.parse.urlsplit(uri).path
                raise LogValueError(
                    f"MLflow does not keep runs in plain files any more, which is what "
                    f"`tracking_uri={uri!r}` asks for. Use a database: 'sqlite:///{path}.db'."
                )
            if uri.startswith(SQLITE):  # Wherever we are when it is gone on with.
                uri = SQLITE + os.path.abspath(uri.removeprefix(SQLITE))
            return uri, artifacts
        directory = (self.directory or Path()).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        artifacts = artifacts or (directory / "mlruns" / _word(self.project)).as_uri()
        return f"{SQLITE}{directory / 'mlflow.db'}", artifacts

    def words(self) -> dict[str, Any]:
        """Where the run is, whatever the environment says later."""
        words = {"tracking_uri": self._uri, "artifact_location": self._artifacts, "mode": None}
        return {**super().words(), **words}

    def connect(self) -> None:
        """Find the experiment and the run, or make them."""
        self._knock()
        self._client = client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        experiment = client.get_experiment_by_name(self.project)
        if experiment is None:
            # Else MLflow's pages show it as one of language models, without curves.
            kind = {"mlflow.experimentKind": "custom_model_development"}
            number = client.create_experiment(self.project, self._artifacts, kind)
        else:
            number = experiment.experiment_id
        run = self._find(number)
        if run is None and self.resume == "must":
            raise ValueError(f"there is no run {self.run_id!r} in {self.project!r} to be resumed")
        if run is None:
            tags = {tag: value or "true" for tag, value in self.tags.items()}
            tags |= {TAG: self.run_id, UNIQUE: self.unique}
            if self.group:
                tags["group"] = self.group
            if "description" in self.options:
                tags["mlflow.note.content"] = self.options["description"]
            run = client.create_run(number, run_name=self.name, tags=tags)
        else:
            client.update_run(run.info.run_id, status="RUNNING")
        self._number = run.info.run_id
        self._until = int(run.data.tags.get(UNTIL, 0))
        self._log_params(run.data.params)

    def _find(self, experiment: str) -> Any:
        """The run, if it is there: also if we made it and were not told."""
        filters = [f'tags.`{UNIQUE}` = "{self.unique}"']
        if self.resume != "never":
            filters += [f'tags.`{TAG}` = "{self.run_id}"', f'attributes.run_name = "{self.run_id}"']
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

    def _log_params(self, there: dict[str, str]) -> None:
        flat = {_clean(k): str(v)[:6000] for k, v in flat_config(self.config).items()}
        changed = [name for name, value in there.items() if flat.get(name, value) != value]
        if changed:
            reports.warning(
                "MLflow keeps the first value of a parameter, so %s stay as they were.", changed
            )
        params = [self._entities.Param(k, v) for k, v in flat.items() if k not in there]
        for start in range(0, len(params), PARAMS):
            some = params[start : start + PARAMS]
            self._client.log_batch(self._number, params=some, synchronous=True)

    def send(self, rows: list[Row]) -> None:
        """Send many metrics at once, which is much faster than one by one."""
        self._knock()
        client, run = self._client, self._number
        moments = [(_whole(row), self._at(row)) for row in rows]
        metrics = [
            self._entities.Metric(name, number, at, step)
            for row, (step, at) in zip(rows, moments, strict=True)
            for name, number in self._metrics(row)
        ]
        for start in range(0, len(metrics), AT_ONCE):
            some = metrics[start : start + AT_ONCE]
            client.log_batch(run, metrics=some, synchronous=True)
        for row, (step, at) in zip(rows, moments, strict=True):
            self._send_files(row, step, at)
        self._filed -= {filed for filed in self._filed if filed[1:] in moments}

    def _at(self, row: Row) -> int:
        """When a row is of, in milliseconds, after all that the run had when it was opened."""
        now = round(1000 * row.time)
        if self._shift is None:
            self._shift = max(0, self._until + 1 - now)
        self._until = max(self._until, now + self._shift)
        return now + self._shift

    def _metrics(self, row: Row) -> Iterator[tuple[str, float]]:
        for name, number in (row.scalars | other_steps(row)).items():
            yield self._names(name), float(number)
        for name, counted in row.histograms.items():
            mean = counted.total / max(sum(counted.counts), 1)
            for label, number in {"mean": mean, "min": counted.low, "max": counted.high}.items():
                yield self._names(f"{name}/{label}", of="histogram"), number

    def _send_files(self, row: Row, step: int, at: int) -> None:
        client, run = self._client, self._number
        place = f"{step:08}-{at}"  # There is no other row at that time.
        for name, text in row.texts.items():
            client.log_text(run, text, f"texts/{self._names(name)}/{place}.txt")
        for name, counted in row.histograms.items():
            about = {"step": step, **counted._asdict()}
            client.log_dict(run, about, f"histograms/{self._names(name)}/{place}.json")
        for name, image in row.images.items():
            key = self._image_names(name)
            if (key, step, at) not in self._filed:  # It would be there twice.
                client.log_image(run, image, key=key, step=step, timestamp=at, synchronous=True)
                self._filed.add((key, step, at))

    def finish(self, failed: bool) -> None:
        """Say how the run ended."""
        self._knock()
        if self._until > 1000 * time.time():  # Who goes on with it has to know.
            self._client.set_tag(self._number, UNTIL, self._until)
        self._client.set_terminated(self._number, "FAILED" if failed else "FINISHED")

    def refuses(self, error: Exception) -> bool:
        """Say whether MLflow does not take what it got; anything else may be a matter of time."""
        code = getattr(error, "error_code", None)
        if code is not None:
            return code in REFUSED
        return super().refuses(error) or getattr(error, "errno", None) == errno.ENAMETOOLONG

    def _knock(self) -> None:
        """See whether the server is there: MLflow itself would wait for two minutes."""
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
            raise ConnectionError(f"{url.scheme}://{url.netloc} is not there: {error}") from error

    def _native(self) -> Any:
        return self._client.get_run(self._number)


def _clean(name: str) -> str:
    """A name that MLflow takes; it may have slashes."""
    clean = re.sub(r"[^\w.\- :/]", "_", name).encode()[:240].decode(errors="ignore")
    return "/".join(part for part in clean.split("/") if part.strip(".")) or "_"


def _clean_image(name: str) -> str:
    """A name that MLflow takes for images."""
    return re.sub(r"[^\w.\- /]", "_", _clean(name), flags=re.ASCII)


def _whole(row: Row) -> int:
    step = int(row.step)
    if not -(2**63) <= step < 2**63:
        raise ValueError(f"{step} is larger than steps can be in MLflow")
    return step


def _word(name: str) -> str:
    """A name for a file."""
    return re.sub(r"[^\w.-]+", "-", name)
