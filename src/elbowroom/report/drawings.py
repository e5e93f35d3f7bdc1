"""The drawings of a comparison, from its records: one panel a language."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from elbowroom.report.bars import Bars, bar_chart
from elbowroom.report.figure import Figure
from elbowroom.report.lines import Axes, Line, line_chart
from elbowroom.report.records import Comparison, Run, number
from elbowroom.study import Interval, mean_interval

Curve: TypeAlias = dict[float, float]
Source: TypeAlias = Callable[[Run], Curve]
FALL = 0.1  # of training; the start of each curve may leave the drawing
LARGEST_NLL = 700.0  # beyond it exp overflows


def learning_curves(comparison: Comparison) -> list[Figure]:
    """Return validation perplexity against the step for each language that was evaluated."""
    figures = []
    for i, language in enumerate(comparison.languages):
        lines = _lines(comparison, partial(_validation, language=language))
        title = f"{language}: validation perplexity"
        axes = Axes(x="step", y="perplexity", log_y=True, y_values=_settled(lines))
        figures += [line_chart(f"learning-{i}", title, lines, axes)] if lines else []
    return figures


def training_curves(comparison: Comparison) -> list[Figure]:
    """Return the training loss against the step for each language."""
    figures = []
    for i, language in enumerate(comparison.languages):
        lines = _lines(comparison, partial(_logged, key=f"loss/{language}"))
        title = f"{language}: training loss"
        axes = Axes(x="step", y="nats", y_values=_settled(lines))
        figures += [line_chart(f"training-{i}", title, lines, axes)] if lines else []
    return figures


def temperature_curves(comparison: Comparison) -> list[Figure]:
    """Return perplexity against temperature for each language that has a sweep."""
    figures = []
    for i, language in enumerate(comparison.languages):
        lines = _lines(comparison, partial(_sweep, language=language))
        if lines:
            figures.append(_temperature_panel(f"temperature-{i}", language, lines))
    return figures


def kept_curves(comparison: Comparison) -> list[Figure]:
    """Return the share of entries that the loss kept against the step, if any run logged it."""
    lines = _lines(comparison, partial(_logged, key="kept"))
    axes = Axes(x="step", y="kept share", from_zero=True)
    return [line_chart("kept", "Share of entries the loss kept", lines, axes)] if lines else []


def frequency_bars(comparison: Comparison) -> list[Figure]:
    """Return the loss by frequency of the target for each language that has bins."""
    figures = []
    for i, language in enumerate(comparison.languages):
        bars = [
            Bars(label=method, index=m, values=values)
            for m, method in enumerate(comparison.methods)
            if (values := _bins(comparison, method, language))
        ]
        if bars:
            count = max(len(each.values) for each in bars)
            padded = [
                Bars(
                    label=b.label,
                    index=b.index,
                    values=[*b.values, *[None] * (count - len(b.values))],
                )
                for b in bars
            ]
            names = [str(b + 1) for b in range(count)]
            title = f"{language}: loss by frequency of the token"
            x = "frequency bin, 1 the rarest"
            figures.append(bar_chart(f"bins-{i}", title, names, padded, x=x, y="nats a token"))
    return figures


def _lines(comparison: Comparison, source: Source) -> list[Line]:
    """Return a thin line for each run and a thick one for the mean of each method's."""
    thin, thick = [], []
    for index, method in enumerate(comparison.methods):
        curves = [(run, source(run)) for run in comparison.of(method)]
        curves = [(run, curve) for run, curve in curves if curve]
        for _, curve in curves:
            thin.append(_line(method, index, curve, thin=True))
        mean = _mean([curve for run, curve in curves if run.done])
        thick += [_line(method, index, mean, thin=False)] if mean else []
    return [*thin, *thick]


def _line(method: str, index: int, curve: Curve, *, thin: bool) -> Line:
    x = sorted(curve)
    return Line(label=method, index=index, x=x, y=[curve[at] for at in x], thin=thin)


def _mean(curves: Sequence[Curve]) -> Curve:
    """Return the mean where all curves have a value."""
    if not curves:
        return {}
    shared = set(curves[0]).intersection(*curves[1:])
    return {x: sum(curve[x] for curve in curves) / len(curves) for x in shared}


def _validation(run: Run, language: str) -> Curve:
    found = {}
    for line in run.metrics:
        step, evaluated = number(line.get("step")), line.get("eval")
        scores = evaluated.get(language) if isinstance(evaluated, Mapping) else None
        nll = number(scores.get("nll")) if isinstance(scores, Mapping) else None
        if step is not None and nll is not None and nll < LARGEST_NLL:
            found[step] = math.exp(nll)
    return found


def _logged(run: Run, key: str) -> Curve:
    pairs = ((number(line.get("step")), number(line.get(key))) for line in run.metrics)
    return {step: value for step, value in pairs if step is not None and value is not None}


def _sweep(run: Run, language: str) -> Curve:
    scores = run.scores(language)
    temperatures = scores.get("temperatures") or run.record.get("temperatures") or ()
    nll = scores.get("nll_by_temperature") or ()
    pairs = ((number(t), number(v)) for t, v in zip(temperatures, nll, strict=False))
    return {t: math.exp(v) for t, v in pairs if t is not None and v is not None and v < LARGEST_NLL}


def _settled(lines: Sequence[Line]) -> list[float]:
    """Return what was measured after the first fall, so that the rest has room."""
    start = FALL * max((x for line in lines for x in line.x), default=0.0)
    pairs = (pair for line in lines for pair in zip(line.x, line.y, strict=True))
    return [y for x, y in pairs if y is not None and x >= start]


def _temperature_panel(name: str, language: str, lines: Sequence[Line]) -> Figure:
    """Draw the part that matters: around each method's least, and temperature 1."""
    means = [line for line in lines if not line.thin] or lines
    curves = [dict(zip(line.x, line.y, strict=True)) for line in means]
    least = min(y for curve in curves for y in curve.values() if y is not None)
    at_one = [y for curve in curves for x, y in curve.items() if x == 1 and y is not None]
    most = 1.1 * max([2 * least, *at_one])
    seen = [x for c in curves for x, y in c.items() if y is not None and y <= most]
    low, high = min([*seen, 1.0]), max([*seen, 1.0])
    cut = [_cut(line, low, high) for line in lines]
    inside = [y for line in cut for y in line.y if y is not None and y <= most]
    axes = Axes(x="temperature", y="perplexity", log_y=True, y_values=[*inside, most], guide=1.0)
    return line_chart(name, f"{language}: perplexity against temperature", cut, axes)


def _cut(line: Line, low: float, high: float) -> Line:
    kept = [(x, y) for x, y in zip(line.x, line.y, strict=True) if low <= x <= high]
    x, y = [x for x, _ in kept], [y for _, y in kept]
    return Line(label=line.label, index=line.index, x=x, y=y, thin=line.thin)


def _bins(comparison: Comparison, method: str, language: str) -> list[Interval | None]:
    """Return the mean loss over the seeds in each bin."""
    listed = [run.scores(language).get("bins") or () for run in comparison.of(method) if run.done]
    count = max((len(bins) for bins in listed), default=0)
    found: list[Interval | None] = []
    for b in range(count):
        values = [number(bins[b].get("nll")) for bins in listed if b < len(bins)]
        known = [value for value in values if value is not None]
        found.append(mean_interval(known, level=comparison.level) if known else None)
    return found if any(found) else []
