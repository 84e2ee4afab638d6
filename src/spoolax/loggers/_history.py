"""The curve of a value over a run of any length, in bounded memory."""

from __future__ import annotations

import math


class History:
    """Points of a curve, spread evenly over the run: if there are too many, drop every other."""

    def __init__(self, most: int) -> None:
        self.steps: list[float] = []
        self.values: list[float] = []
        self.lowest, self.highest = math.inf, -math.inf
        self.latest = self.latest_step = math.nan
        self.count = 0
        self._most, self._stride, self._is_point = most, 1, False

    def add(self, step: float, value: float) -> None:
        """Add a point."""
        self.lowest, self.highest = min(self.lowest, value), max(self.highest, value)
        self.latest, self.latest_step = value, step
        self._is_point = self.count % self._stride == 0
        if self._is_point:
            self.steps.append(step)
            self.values.append(value)
            if len(self.steps) > self._most:
                self.steps, self.values = self.steps[::2], self.values[::2]
                self._stride *= 2
        self.count += 1

    def curve(self) -> tuple[list[float], list[float]]:
        """The points, always including the latest one."""
        if self._is_point and self.steps[-1] == self.latest_step:
            return self.steps, self.values
        return [*self.steps, self.latest_step], [*self.values, self.latest]
