"""From data to places in a drawing: linear and logarithmic scales with round ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from elbowroom.report.numbers import short, typographic

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A range of data laid over a range of places."""

    low: float
    """The data's lower end."""
    high: float
    """The data's upper end."""
    start: float
    """Where ``low`` is drawn."""
    end: float
    """Where ``high`` is drawn."""
    log: bool = False
    """Whether equal ratios take equal room."""

    def __call__(self, value: float) -> float:
        """Return the place of a value; outside the range it is outside the drawing."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Return round values inside the range, about ``count`` of them."""
        found = log_ticks(self.low, self.high, count) if self.log else []
        return found or nice_ticks(self.low, self.high, count)


def scale(
    values: Iterable[float | None], start: float, end: float, *, log: bool = False, pad: float = 0.0
) -> Scale:
    """Return the scale that holds all values, with some room at both ends.

    Args:
        values: None and what is not finite (or not above 0 on a logarithmic scale) is passed over.
        start: where the least value is drawn.
        end: where the greatest is drawn.
        log: a logarithmic scale.
        pad: the room at each end, as a share of the range.

    Example:
        >>> scale([0, 10], 0, 100)(2.5)
        25.0
    """
    usable = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)]
    low, high = (min(usable), max(usable)) if usable else (1.0, 2.0)
    if log:
        low, high = math.log(low), math.log(high)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = 0.05 * abs(low) or 0.5
        low, high = low - room, high + room
    room = pad * (high - low)
    low, high = low - room, high + room
    if log:
        low, high = math.exp(low), math.exp(high)
    return Scale(low=low, high=high, start=start, end=end, log=log)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return multiples of 1, 2, 2.5 or 5 times a power of ten inside a range.

    Example:
        >>> nice_ticks(0, 8000, 4)
        [0.0, 2000.0, 4000.0, 6000.0, 8000.0]
    """
    raw = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in _STEPS if s * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round values for a logarithmic scale; none where the range is too narrow for them.

    Example:
        >>> log_ticks(4, 90)
        [5.0, 10.0, 20.0, 30.0, 50.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside: list[float] = []
    for digits in ((1, 2, 3, 4, 5, 6, 8), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
        every = (float(f"{digit}e{power}") for power in powers for digit in digits)
        inside = [value for value in every if low <= value <= high]
        if len(inside) <= count + 1:
            break
    keep = max(1, math.ceil(len(inside) / (count + 1)))
    return inside[::keep] if len(inside) >= 3 else []


def tick_labels(ticks: list[float]) -> list[str]:
    """Return the ticks as text, with as many decimals as the finest needs.

    Example:
        >>> tick_labels([0.0, 0.25, 0.5]), tick_labels([5.0, 10.0])
        (['0', '0.25', '0.50'], ['5', '10'])
        >>> tick_labels([0.0, 5000.0, 10000.0]), tick_labels([0.1, 10.0, 100000.0])
        (['0', '5k', '10k'], ['0.1', '10', '100k'])
    """
    labels = [short(tick) for tick in ticks]
    least = min((abs(tick) for tick in ticks if tick), default=0.0)
    if any("k" in label for label in labels) and max(ticks) < 1e6 and least >= 100:
        return ["0" if t == 0 else typographic(f"{t / 1000:g}k") for t in ticks]
    if any(c in label for label in labels for c in "ekMG"):
        return [typographic(label) for label in labels]
    decimals = max((len(label.partition(".")[2]) for label in labels), default=0)
    return ["0" if t == 0 else typographic(f"{t:.{decimals}f}") for t in ticks]
