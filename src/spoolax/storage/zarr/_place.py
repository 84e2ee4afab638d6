"""Where a store is: a directory, or a prefix in a bucket.

A new store takes the place of another in one step where the file system can do that. In a bucket
nothing can be renamed, so what is there is removed first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

from ...errors import LogFileError
from ...loggers._protocol.paths import UrlPath, can_write
from .._store.lock import Lock
from .._store.structures import Json
from ._lease import Lease
from ._tensorstore import kvstore, writing

ROOT = "zarr.json"
UNFINISHED = ".__lock"  # How tensorstore's names end of files that it has not completed.
REGION = "us-east-1"  # If the environment names none.


class Place(Protocol):
    """Where a store is."""

    @property
    def spec(self) -> Json:
        """tensorstore's description of it."""

    def prepare(self, writer: str) -> None:
        """Refuse a place that cannot be written, or that holds something else."""

    def lock(self) -> Lock | Lease:
        """What keeps a second writer away."""

    def draft(self) -> Place:
        """An empty place to make a new store in."""

    def replace(self, draft: Place) -> None:
        """Put the new store here, instead of what was here before."""

    def clean(self) -> None:
        """Remove what a writer that died left half-written."""

    def remove(self) -> None:
        """Remove everything here."""


def place_of(path: Path, endpoint: str | None) -> Place:
    """The place that a path stands for."""
    return Bucket(path, endpoint) if isinstance(path, UrlPath) else Directory(path)


class Directory:
    """A directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec: Json = {"driver": "file", "path": f"{path}/"}

    def prepare(self, writer: str) -> None:
        """Make the directory that it is in. What is no store is never replaced."""
        path = self.path
        if path.exists() and not (path / ROOT).is_file():
            is_empty = path.is_dir() and not any(path.iterdir())
            if not is_empty:
                what = "directory that is not a Zarr store" if path.is_dir() else "file"
                raise LogFileError(
                    f"{writer} cannot write to {str(path)!r}: it is a {what}. Choose another name."
                )
        can_write(path, writer)

    def lock(self) -> Lock:
        """A file next to it, as for every local store."""
        return Lock(self.path)

    def draft(self) -> Directory:
        """A directory next to it."""
        draft = Directory(self.path.with_name(f".{self.path.name}.draft"))
        draft.remove()  # Of an attempt that was interrupted.
        return draft

    def replace(self, draft: Place) -> None:
        """Rename the draft."""
        assert isinstance(draft, Directory)
        try:
            if self.path.exists():
                _exchange(draft.path, self.path)
                draft.remove()
            else:
                os.rename(draft.path, self.path)
        except OSError as error:
            raise LogFileError(f"Cannot create {str(self.path)!r}: {error}") from error

    def clean(self) -> None:
        """Remove files that were not renamed any more."""
        for file in self.path.rglob(f"*{UNFINISHED}"):
            file.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the directory, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


class Bucket:
    """A prefix in a bucket of S3 or Google Cloud Storage, or in the memory of this process."""

    def __init__(self, path: UrlPath, endpoint: str | None) -> None:
        self._path, self._endpoint = path, endpoint
        self.spec = self._spec(path, "/")

    def _spec(self, path: UrlPath, end: str) -> Json:
        scheme, _, rest = str(path).partition("://")
        if scheme == "memory":
            return {"driver": "memory", "path": f"{rest}{end}"}
        bucket, _, key = rest.partition("/")
        if not bucket or not key:
            raise LogFileError(
                f"{str(path)!r} is not a place for a store: write "
                f'"{scheme}://bucket/name.zarr", with a name in the bucket.'
            )
        spec: Json = {
            "driver": {"s3": "s3", "gs": "gcs"}[scheme],
            "bucket": bucket,
            "path": key + end,
        }
        if scheme == "gs":
            return spec
        if (
            "AWS_ACCESS_KEY_ID" in os.environ
        ):  # Which counts first. Looking elsewhere prints errors.
            spec["aws_credentials"] = {"type": "environment"}
        endpoint = self._endpoint or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint:
            named = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
            spec |= {"endpoint": endpoint, "aws_region": named or REGION}
        return spec

    def prepare(self, writer: str) -> None:
        """Refuse a prefix under which there is something else."""
        try:
            store = kvstore(self.spec, writing())
            is_other = store.read(ROOT).result().state != "value" and store.list().result()
        except ValueError as error:
            raise LogFileError(
                f"{writer} cannot write to {str(self._path)!r}: {error}. Check the name of the "
                "bucket, the credentials and the address of the service."
            ) from error
        if is_other:
            raise LogFileError(
                f"{writer} cannot write to {str(self._path)!r}: there is something there that is "
                "not a Zarr store. Choose another name."
            )

    def lock(self) -> Lease:
        """An object next to it, which is renewed."""
        key = self._path.with_name(f".{self._path.name}.lock")
        return Lease(str(self._path), lambda: kvstore(self._spec(key, ""), writing()))

    def draft(self) -> Bucket:
        """The place itself, which is empty then."""
        self.remove()
        return self

    def replace(self, draft: Place) -> None:
        """It is there already."""
        assert draft is self

    def clean(self) -> None:
        """Objects are there as a whole, or not at all."""

    def remove(self) -> None:
        """Remove everything with the prefix; the root goes first, so nobody sees half a store."""
        store: Any = kvstore(self.spec, writing())
        store.write(ROOT, None).result()
        store.delete_range(type(store).KeyRange()).result()


RENAME_EXCHANGE, AT_FDCWD = 2, -100


def _exchange(one: Path, other: Path) -> None:
    """Exchange two directories: in one step, which Linux offers, or else in three."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = (os.fsencode(one), os.fsencode(other))
    if rename is None or rename(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE):
        aside = one.with_name(f"{one.name}.old")
        os.rename(other, aside)
        os.rename(one, other)
        os.rename(aside, one)
