"""The thread that sends rows to a tracker, and what it does if the tracker is not there.

Trackers may be slow, be away for an hour, or raise whatever they like. All of that happens on this
thread, which takes its rows from files, so the program does not notice. A logger and its runs have
one of them together.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable

from ..._tap.sinks import reports
from ...errors import UnsentWarning
from ._channel import Channel, counted

TICK = 1.0  # Seconds between two looks at what counts as sent.
LINGER = 0.2  # Seconds between two rounds, for rows to gather.
ATTEMPTS = 4  # At the end, if the tracker was there before.
TALK = 5.0  # Seconds of waiting at the end after which we say what we wait for.


class Outbox:
    """A thread that does the work of some channels, one after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._channels: list[Channel] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._news = threading.Event()
        self._hurry = threading.Event()
        self._warned = self._refused = False
        self._progress = 0  # Pieces of work that were done.
        self._left: list[Channel] = []
        self._given_up_at = -1  # By somebody who waited, after so many pieces.
        self.is_interrupted = False

    def add(self, channel: Channel) -> None:
        """Take on a channel."""
        with self._lock:
            self._channels.append(channel)

    def notify(self) -> None:
        """There is something to do."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                    self._thread.start()
        if not self._news.is_set():
            self._news.set()

    def give_up(self) -> None:
        """Somebody has waited in vain."""
        self._given_up_at = self._progress

    @property
    def is_hopeless(self) -> bool:
        """Whether waiting was of no use before, and nothing was done since."""
        return self.is_interrupted or self._given_up_at == self._progress

    def wait(self, channels: list[Channel], done: Callable[[], bool], patience: float) -> bool:
        """Wait until something is done; give up if a tracker is away, or nothing moves."""
        begun = moved = time.monotonic()
        seen, talked = self._progress, False
        # Who was away before gets one more chance, and who goes away now a few.
        enough = [c.failures + (1 if c.failures else ATTEMPTS) for c in channels]
        for channel in channels:
            channel.hurry()
        self._hurry.set()
        self.notify()
        while not done():
            time.sleep(0.005)
            now = time.monotonic()
            if self._progress != seen:
                seen, moved = self._progress, now
            if now - moved > patience:
                return False
            if not any(
                c.has_work and c.failures < n for c, n in zip(channels, enough, strict=True)
            ):
                return done()  # Those that are left are away.
            if now - begun > TALK and not talked:
                talked = True
                rows = sum(c.waiting for c in channels)
                reports.warning(
                    "%s %s. Interrupt it to go on without that; no row is lost.",
                    channels[0].title,
                    f"still has {counted(rows)} to send" if rows else "waits for its tracker",
                )
        return True

    def leave(self, channel: Channel) -> None:
        """A channel was closed, whatever has become of it."""
        self._left.append(channel)

    def warn(self) -> None:
        """Say what was left behind, and how to send it."""
        if unsent := [channel for channel in self._left if channel.waiting]:
            first = unsent[0]
            assert first.spill is not None
            rows = counted(sum(channel.waiting for channel in unsent))
            runs = "" if len(unsent) == 1 else f" of {len(unsent)} runs"
            path = str(first.spill.path if len(unsent) == 1 else first.spill.path.parent)
            wrong = any(channel.refusal for channel in unsent)
            way = " (and other words than before, as these were refused)" if wrong else ""
            _warn(
                f"{first.title} could not send {rows}{runs}{first.reason}. Nothing is lost: send "
                f"them later with `spoolax.loggers.replay({path!r})`{way}."
            )
        for channel in self._left:
            began = channel.wanted or channel.connected.is_set()
            if began and not (channel.was_ended or channel.waiting or channel.refusal):
                what = "close" if channel.connected.is_set() else "open"
                _warn(f"{channel.title} could not {what} its run{channel.reason}.")
            if channel.aside is not None:
                rows = counted(channel.refused)
                _warn(f"{channel.title} did not take {rows}. They are in {channel.aside.path}.")

    def _work(self) -> None:
        while True:
            late = [channel.tick() for channel in tuple(self._channels)]
            self._news.wait(TICK if any(late) else None)
            self._news.clear()
            hurried = self._hurry.is_set()
            self._hurry.clear()
            self._round()
            with self._lock:
                self._channels = [c for c in self._channels if not c.over.is_set()]
                if not self._channels:
                    self._thread = None
                    return
            if not hurried:
                self._hurry.wait(LINGER)

    def _round(self) -> None:
        """Work until there is nothing to do."""
        while todo := [channel for channel in tuple(self._channels) if channel.has_work]:
            now = time.monotonic()
            ready = [channel for channel in todo if not channel.pause(now)]
            for channel in ready:
                had_failed = channel.failures
                channel.work()
                if channel.refusal is not None:
                    self._tell_refusal(channel)
                elif channel.error is None:
                    self._progress += 1
                    if had_failed:
                        reports.info("%s sends again.", channel.title)
                elif not self._warned:
                    self._warned = True
                    self._tell(channel)
            for channel in tuple(self._channels):
                channel.tick()  # Also of those that wait for one that is away.
            if not ready:
                # Others may have something new before that.
                self._hurry.wait(min(LINGER, *(channel.pause(now) for channel in todo)))
                self._hurry.clear()

    def _tell_refusal(self, channel: Channel) -> None:
        if not self._refused:  # It would be the same for every seed.
            self._refused = True
            reports.error("%s could not open its run.", channel.title, exc_info=channel.refusal)

    def _tell(self, channel: Channel) -> None:
        where = "" if channel.spill is None else f" in {channel.spill.path}"
        reports.warning(
            "%s cannot send%s. The program goes on; its rows wait%s, and are sent when that works "
            "again.",
            channel.title,
            channel.reason,
            where,
        )


def _warn(message: str) -> None:
    """Warn, as if it were done by who uses spoolax."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("spoolax."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UnsentWarning, stacklevel=level)
