"""MLflow."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._extras import load
from .._host import logger as reports
from ..errors import LogValueError, MissingExtraError
from ._config import flat_config
from ._rows import Row
from ._tracker import TrackerLogger

AT_ONCE = 1000  # Metrics that MLflow takes in one call,
PARAMS = 100  # and parameters.
TAG = "chiplog.run_id"
UNIQUE = "chiplog.unique"
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
        self._keys: dict[str, str] = {}  # What MLflow calls them, by name.
        self._filed: set[tuple[Any, ...]] = set()  # Images of rows that may be sent again.
        # When the same was last logged, in milliseconds.
        self._last: dict[tuple[Any, ...], int] = {}

    def _places(self) -> tuple[str, str | None]:
        """Where metrics go, and where files go, if that is ours to say."""
        given = self.options.get("tracking_uri") or os.environ.get("MLFLOW_TRACKING_URI")
        artifacts = self.options.get("artifact_location")
        if self.mode == "online" and not given:
            raise LogValueError(
                "MlflowLogger is to be online, but does not know where the server is. Give it a "
                "`tracking_uri`, such as 'http://localhost:5000', or set MLFLOW_TRACKING_URI."
            )
        if given and self.mode != "offline":
            uri = os.fspath(given)
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
        """Send many metrics at once, which is 30 times as fast as one by one."""
        self._knock()
        client, run = self._client, self._number
        last, now = self._last.copy(), 0

        def at(*what: Any) -> int:
            # What is the same in everything would be taken for one that came twice.
            last[what] = max(now, last.get(what, 0) + 1)
            return last[what]

        metrics, images, texts = [], [], []
        for row in rows:
            now, step = int(1000 * row.time), int(row.step)
            for name, number in self._metrics(row):
                when = at(name, repr(number), step)  # NaN is not even equal to itself.
                metrics.append(self._entities.Metric(name, number, when, step))
            for name, image in self._images(row):
                what = (name, zlib.crc32(image.tobytes()), step)
                images.append((image, (*what, at(*what))))
            for name, ending, text in self._texts(row):
                summed = zlib.crc32(text.encode())
                file = f"{step:08}-{at(name, summed, step)}-{summed:08x}.{ending}"
                texts.append((text, f"{name}/{file}"))
        for start in range(0, len(metrics), AT_ONCE):
            some = metrics[start : start + AT_ONCE]
            client.log_batch(run, metrics=some, synchronous=True)
        for text, path in texts:
            client.log_text(run, text, path)
        for image, place in images:
            if place not in self._filed:  # It would be there twice.
                name, _, step, when = place
                client.log_image(run, image, key=name, step=step, timestamp=when, synchronous=True)
                self._filed.add(place)
        self._filed.difference_update(place for _, place in images)
        # Not before all of it was sent: the same rows must become the same metrics again.
        self._last = {what: when for what, when in last.items() if when >= now}

    def _metrics(self, row: Row) -> Iterator[tuple[str, float]]:
        for name, number in row.scalars.items():
            yield self._key(name), float(number)
        for name, at in row.steps.items():
            if name != row.axis or at != int(row.step):
                yield self._key(name), float(at)
        for name, counted in row.histograms.items():
            key = self._key(name)
            yield f"{key}/mean", counted.total / max(sum(counted.counts), 1)
            yield f"{key}/min", counted.low
            yield f"{key}/max", counted.high

    def _key(self, name: str) -> str:
        """What MLflow calls a value; no other has the same name there."""
        if name not in self._keys:
            clean, number = _clean(name), 1
            while (key := clean if number == 1 else f"{clean}_{number}") in self._keys.values():
                number += 1
            self._keys[name] = key
        return self._keys[name]

    def _images(self, row: Row) -> Iterator[tuple[str, Any]]:
        for name, image in row.images.items():
            yield re.sub(r"[^\w.\- /]", "_", self._key(name), flags=re.ASCII), image

    def _texts(self, row: Row) -> Iterator[tuple[str, str, str]]:
        for name, text in row.texts.items():
            yield f"texts/{self._key(name)}", "txt", text
        for name, counted in row.histograms.items():
            about = {"step": int(row.step), **counted._asdict()}
            yield f"histograms/{self._key(name)}", "json", json.dumps(about, indent=2)

    def finish(self, failed: bool) -> None:
        """Say how the run ended."""
        self._knock()
        self._client.set_terminated(self._number, "FAILED" if failed else "FINISHED")

    def refuses(self, error: Exception) -> bool:
        """Say whether MLflow does not take what it got; anything else may be a matter of time."""
        code = getattr(error, "error_code", None)
        return super().refuses(error) if code is None else code in REFUSED

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
    clean = re.sub(r"[^\w.\- :/]", "_", name)[:240]
    return "/".join(part for part in clean.split("/") if part.strip(".")) or "_"


def _word(name: str) -> str:
    """A name for a file."""
    return re.sub(r"[^\w.-]+", "-", name)
