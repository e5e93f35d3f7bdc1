"""The figures of a reproduction: tokens, cosines, perplexity against temperature, seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from elbowroom.report.drawings import temperature_curves
from elbowroom.report.figure import BOTTOM, RIGHT, WIDTH, Figure, clipped, x_axis
from elbowroom.report.lines import Axes, Line, line_chart
from elbowroom.report.markup import Markup, element, join, visible
from elbowroom.report.paper.cells import drawn, ends_of
from elbowroom.report.paper.maps import class_map, cosine_map
from elbowroom.report.records import comparison
from elbowroom.report.scales import Scale, scale
from elbowroom.report.scatter import HeadMatrix
from elbowroom.study.paper import LABELS, SCORES, Part, Result, Study
from elbowroom.study.paper.tokens import Counts

LEAST = 1e-30  # what a probability of 0 is drawn at
LINE = 22
LABEL = 158
NAMES = {"recall@5": "recall-5", "fitted_ppl": "fitted-ppl", "fitted_temperature": "fitted-t"}
SPREAD = 3.0  # a logarithmic scale from this ratio on


def temperature_figures(study: Study, methods: Sequence[str]) -> list[Figure]:
    """Return perplexity against temperature, a figure a language.

    Args:
        study: our runs.
        methods: whose, in the order of their colours.
    """
    records = [record for method in methods for record in study.of(method)]
    return temperature_curves(comparison(records)) if records else []


def token_figures(counts: Counts) -> list[Figure]:
    """Return the expected count of each token against its rank; nothing without counts.

    Args:
        counts: by language, the most frequent first.
    """
    lines = [
        Line(
            label=language,
            index=i,
            x=list(range(1, len(found) + 1)),
            y=[n for _, n in found],
            method=False,
        )
        for i, (language, found) in enumerate(counts.items())
        if found
    ]
    if not lines:
        return []
    ends = [
        f"{language}: from {found[0][1]:,.7g} ({visible(found[0][0])}) "
        f"to {found[-1][1]:,.7g} ({visible(found[-1][0])})"
        for language, found in counts.items()
        if found
    ]
    axes = Axes(x="rank", y="expected count", log_y=True)
    figure = line_chart("tokens", "Expected counts of tokens", lines, axes)
    return [replace(figure, note="; ".join(ends) + ".")]


def tail_figures(study: Study, methods: Sequence[str]) -> list[Figure]:
    """Return sorted probabilities after one context; nothing where no record has them.

    Args:
        study: our runs; their records hold "tail".
        methods: whose.
    """
    thin, thick, said = [], [], []
    for i, method in enumerate(methods):
        tails = [record["tail"] for record in study.of(method) if record.get("tail")]
        curves = [[max(p, LEAST) for p in tail["probabilities"]] for tail in tails]
        if not curves:
            continue
        rank = list(range(1, len(curves[0]) + 1))
        own = Line(label=method, index=i, x=rank, y=(), method=False)
        thin += [replace(own, y=curve, thin=True) for curve in curves]
        means = [math.exp(sum(map(math.log, at)) / len(at)) for at in zip(*curves, strict=True)]
        thick.append(replace(own, y=means))
        target = sum(tail["target"] for tail in tails) / len(tails)
        said.append(f"{method} {target:.3f}")
    if not thick:
        return []
    axes = Axes(x="rank", y="probability", log_y=True)
    figure = line_chart("tail", "Probabilities after one context", [*thin, *thick], axes)
    return [replace(figure, note=f"The true token has, mean over seeds: {', '.join(said)}.")]


def cosine_figures(heads: Sequence[HeadMatrix]) -> list[Figure]:
    """Return the classes of pairs and each head's cosines; nothing without heads.

    Args:
        heads: of a simulated pair of single characters.
    """
    if not heads:
        return []
    languages = list(dict.fromkeys(str(language) for language in heads[0].languages))
    letters = "".join(heads[0].tokens[: len(heads[0].tokens) // len(languages)])
    maps = [cosine_map(f"cosines-{i}", head) for i, head in enumerate(heads)]
    return [class_map("cosine-classes", letters, languages), *maps]


def shown_methods(study: Study, methods: Sequence[str]) -> list[str]:
    """Return those of some methods that have a finished run."""
    return [method for method in methods if study.of(method)]


def distribution_figures(study: Study, part: Part) -> list[Figure]:
    """Return each score of a table over seeds, a figure a score and language.

    Args:
        study: our runs.
        part: the table.
    """
    figures = []
    for score in SCORES:
        for language in dict.fromkeys(name for row in part.rows for name in row.languages):
            rows = [
                (row.label, study.result(row, language, score))
                for row in part.rows
                if language in row.languages
            ]
            if any(result.values for _, result in rows):
                table = part.name.removeprefix("table-")
                name = f"distribution-{table}-{NAMES.get(score, score)}-{language}"
                figures.append(_distribution(name, f"{language}: {LABELS[score]}", rows))
    return figures


def _distribution(name: str, title: str, rows: Sequence[tuple[str, Result]]) -> Figure:
    known = ends_of([result for _, result in rows])
    low, high = min(known), max(known)
    log = low > 0 and high / low > SPREAD
    on = scale(known, LABEL, WIDTH - RIGHT, log=log, pad=0.05)
    bottom = 8 + LINE * len(rows)
    lines = [_line(label, r, on, 8 + LINE * (i + 0.5)) for i, (label, r) in enumerate(rows)]
    axis = x_axis(on, 8, bottom, title.partition(": ")[2] + (", logarithmic" if log else ""))
    body = join(axis, *lines)
    said = f"{title} of each row over seeds, with the paper's value as a ring."
    return Figure(name=name, title=title, description=said, body=body, height=bottom + BOTTOM)


def _line(label: str, result: Result, on: Scale, y: float) -> Markup:
    words = element("text", clipped(label, 25), x=LABEL - 10, y=y + 4, text_anchor="end")
    return join(words, drawn(result, on, y, 1, label))
