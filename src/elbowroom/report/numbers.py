"""Numbers as people read them: a fixed count of decimals, or a few significant digits."""

from __future__ import annotations

import math

from elbowroom.study import Interval

ABSENT = "–"


def fixed(value: float | None, decimals: int, *, sign: bool = False) -> str:
    """Return a number with so many decimals; a dash for none; never "-0.0".

    Example:
        >>> fixed(-0.04, 1), fixed(1.25, 2, sign=True), fixed(None, 2)
        ('0.0', '+1.25', '–')
    """
    if value is None or not math.isfinite(value):
        return ABSENT
    text = f"{value:+.{decimals}f}" if sign else f"{value:.{decimals}f}"
    return f"{0:.{decimals}f}" if float(text) == 0 else text


def short(value: float) -> str:
    """Return a number with four significant digits at most, for ticks and settings.

    Example:
        >>> short(8000.0), short(0.25), short(1e-05), short(2_500_000)
        ('8000', '0.25', '1e-5', '2.5M')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size <= abs(value) < 1e12:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    text = f"{value:.4g}"
    mantissa, e, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if e else text


def between(interval: Interval, decimals: int, *, sign: bool = False) -> str:
    """Return the ends of an interval; a dash where there is none.

    Example:
        >>> between(Interval(estimate=1.0, low=0.5, high=1.5, level=0.95, n=3), 1)
        '0.5 to 1.5'
    """
    if interval.low is None or interval.high is None:
        return ABSENT
    low, high = (fixed(end, decimals, sign=sign) for end in (interval.low, interval.high))
    return f"{low} to {high}"


def typographic(text: str) -> str:
    """Return text with true minus signs before numbers.

    Example:
        >>> typographic("-1.7, ce-2")
        '−1.7, ce-2'
    """
    out = ["−" if c == "-" and _starts_number(text, i) else c for i, c in enumerate(text)]
    return "".join(out)


def _starts_number(text: str, i: int) -> bool:
    after = text[i + 1 : i + 2]
    return after.isdigit() and (i == 0 or text[i - 1] in " (,;[")
