"""The page's results: the verdicts, and a table a language in which every seed is seen."""

from __future__ import annotations

from collections.abc import Sequence

from elbowroom.report import cells
from elbowroom.report.markup import Markup, element, join
from elbowroom.report.numbers import typographic
from elbowroom.report.palette import marker
from elbowroom.report.records import Comparison, Pair
from elbowroom.report.rows import difference_text, score_table
from elbowroom.report.scales import Scale
from elbowroom.report.scores import SCORES
from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import Verdict, prediction_interval
from elbowroom.study.verdict import OUTCOMES

SIGNS = {"better": "▲", "worse": "▼", "undecided": "◆"}
MOST_NAMED = 4
SHORT_NAME = 22  # up to here a name stays on one line


def headlines(comparison: Comparison) -> list[str]:
    """Return one sentence for each pair of methods: where the one is better than the other.

    Example:
        >>> from elbowroom.report.records import comparison
        >>> common = {"data_seed": 0, "init_seed": 0, "status": "done", "languages": {"lr": {}}}
        >>> headlines(comparison([{"name": name, **common} for name in ("ce-tied", "ours")]))
        ['ours against ce-tied: undecided in lr']
    """
    total = len(comparison.languages)
    sentences = []
    for method, reference, found in _outcomes(comparison):
        said = (f"{outcome} in {''.join(_named(where, total))}" for outcome, where in found)
        sentences.append(f"{method} against {reference}: {', '.join(said)}")
    return sentences


def verdict_section(comparison: Comparison) -> Markup:
    """Return the verdicts: the summary first, then each with its numbers."""
    if not comparison.verdicts:
        return element("p", "There is one method only, so there is nothing to compare.")
    total = len(comparison.languages)
    summary = [_summary(*found, total) for found in _outcomes(comparison)]
    groups = []
    for language in comparison.languages:
        found = [(p, comparison.verdicts[p]) for p in comparison.pairs(language)]
        items = [_item(comparison, pair, verdict) for pair, verdict in found]
        groups.append(element("section", element("h3", language), *items, class_="card"))
    return join(
        element("ul", *summary, class_="summary"),
        element("div", *groups, class_="cards"),
        element("p", _rule(comparison), class_="note"),
    )


def result_section(comparison: Comparison, language: str) -> Markup:
    """Return a language's table of the judged score, and the other scores folded away."""
    others = [s for s in SCORES.values() if s.key != comparison.score.key and comparison.has(s.key)]
    classes = [f"m m{i}" for i in range(len(comparison.methods))]
    tables = [score_table(comparison, language, s).html(classes=classes) for s in others]
    summary = element("summary", "Other scores: ", ", ".join(s.name for s in others))
    more = element("details", summary, *tables) if others else None
    return join(element("h3", language), _judged_table(comparison, language), more)


def badge(outcome: str) -> Markup:
    """Return an outcome as a mark, with a sign for who does not see colours."""
    return element("span", f"{SIGNS[outcome]} {outcome}", class_=f"badge {outcome}")


def method_cell(name: str, index: int) -> Markup:
    """Return a method's name beside its mark."""
    mark = marker(index, 7, 7, 5)
    attributes = {"class_": "key", "viewBox": "0 0 14 14", "width": 14, "height": 14}
    svg = element("svg", mark, aria_hidden="true", **attributes)
    words = element("bdi", name, class_="long" if len(name) > SHORT_NAME else None)
    return element("span", svg, words, class_="method")


def _outcomes(comparison: Comparison) -> list[tuple[str, str, list[tuple[str, list[str]]]]]:
    """Return for each method and reference which outcomes there are, and in which languages."""
    found = []
    for method, reference in dict.fromkeys(pair[1:] for pair in comparison.verdicts):
        by_outcome: dict[str, list[str]] = {outcome: [] for outcome in OUTCOMES}
        for language in comparison.languages:
            verdict = comparison.verdicts[language, method, reference]
            by_outcome[verdict.outcome].append(language)
        said = [(outcome, where) for outcome, where in by_outcome.items() if where]
        found.append((method, reference, said))
    return found


def _summary(
    method: str, reference: str, found: Sequence[tuple[str, list[str]]], total: int
) -> Markup:
    parts = []
    for i, (outcome, where) in enumerate(found):
        parts.append(join(", " if i else " ", badge(outcome), " in ", *_isolated(where, total)))
    return element("li", element("strong", method), f" against {reference}:", *parts)


def _isolated(where: Sequence[str], total: int) -> list[object]:
    """Return names that keep their direction to themselves."""
    return [element("bdi", part) if part in where else part for part in _named(where, total)]


def _named(where: Sequence[str], total: int) -> list[str]:
    """Return the names with what stands between them; their number where they are many."""
    if len(where) > MOST_NAMED:
        return [f"{len(where)} of {total} languages"]
    parts: list[str] = []
    for i, name in enumerate(where):
        parts += [" and " if i == len(where) - 1 else ", "] if i else []
        parts.append(name)
    return parts


def _item(comparison: Comparison, pair: Pair, verdict: Verdict) -> Markup:
    _, method, reference = pair
    index = comparison.methods.index(method)
    text = verdict.text.removeprefix(verdict.outcome).removeprefix(":").strip()
    p = f" Corrected p {_p(verdict.p)}." if verdict.p is not None else ""
    return element(
        "div",
        element(
            "p", badge(verdict.outcome), " ", element("strong", method), f" against {reference}"
        ),
        element("p", typographic(f"{text[:1].upper()}{text[1:]}.{p}"), class_="soft"),
        class_=f"verdict {verdict.outcome} m m{index}",
    )


def _p(value: float) -> str:
    return "below 0.001" if value < 0.001 else f"{value:.2g}"


def _rule(comparison: Comparison) -> str:
    family = max((v.family for v in comparison.verdicts.values()), default=0)
    least = min((v.difference.n for v in comparison.verdicts.values() if v.difference), default=0)
    few = " With so few seeds a rare outcome may not have shown yet." if least < 8 else ""
    return (
        f"Judged is {comparison.score.meaning}. Runs with the same seeds are compared with each "
        "other. “Better” and “worse” need Student’s paired test to say so at "
        f"{100 * (1 - comparison.level):.3g}% after Holm’s correction for the {family} comparisons "
        f"on this page; intervals are each on its own at {100 * comparison.level:.4g}%.{few}"
    )


def _judged_table(comparison: Comparison, language: str) -> Markup:
    score = comparison.score
    means = {m: comparison.mean(m, language, score.key) for m in comparison.methods}
    known = [
        v for m in comparison.methods for v in comparison.values(m, language, score.key).values()
    ]
    ends = [e for mean in means.values() if mean for e in (mean.low, mean.high) if e is not None]
    spread = max(known, default=0.0) - min(known, default=0.0)
    near = [e for e in ends if min(known) - spread <= e <= max(known) + spread]
    on = cells.strip_scale([*known, *near])
    forests = {r: _forest_scale(comparison, language, r) for r in comparison.references}
    columns = [
        Column(label="method", text=True),
        Column(label=f"{score.label}, mean", decimals=score.decimals),
        Column(label="every seed", text=True),
        *(Column(label=f"minus {reference}") for reference in comparison.references),
    ]
    rows: list[list[Cell]] = []
    for index, method in enumerate(comparison.methods):
        row: list[Cell] = [method_cell(method, index), means[method]]
        row.append(_strip(comparison, method, language, on))
        for reference, scale in forests.items():
            row.append(_difference(comparison, (language, method, reference), scale))
        rows.append(row)
    footer: list[Cell] = ["", "", cells.axis(on, cells.STRIP)]
    footer += [_versus(None, cells.axis(scale, cells.FOREST, 3)) for scale in forests.values()]
    title = f"{language}: {score.meaning}"
    classes = [f"m m{i}" for i in range(len(comparison.methods))]
    return Table(title=title, columns=columns, rows=rows).html(footer=footer, classes=classes)


def _forest_scale(comparison: Comparison, language: str, reference: str) -> Scale:
    found = (
        v.difference
        for (la, _, ref), v in comparison.verdicts.items()
        if (la, ref) == (language, reference)
    )
    return cells.forest_scale([difference.interval for difference in found if difference])


def _strip(comparison: Comparison, method: str, language: str, on: Scale) -> Cell:
    score, index = comparison.score, comparison.methods.index(method)
    values = comparison.values(method, language, score.key)
    mean = comparison.mean(method, language, score.key)
    if mean is None:
        return "no finished run"
    labels = {run.seeds: run.seed_label for run in comparison.of(method)}
    named = [(f"{method}, {labels[s]}", value) for s, value in values.items()]
    new = prediction_interval(list(values.values()), level=comparison.level)
    return cells.strip(named, mean, on, index, new=new)


def _difference(comparison: Comparison, pair: Pair, on: Scale) -> Cell:
    verdict = comparison.verdicts.get(pair)
    if verdict is None:
        return element("span", "reference" if pair[1] == pair[2] else "", class_="soft")
    if verdict.difference is None:
        return badge(verdict.outcome)
    interval = verdict.difference.interval
    value, _, ends = typographic(difference_text(interval)).partition(" ")
    range_ = element("span", ends.strip("[]"), class_="ends") if ends else None
    drawn = cells.forest(interval, on, comparison.methods.index(pair[1]))
    return _versus(join(value, range_, badge(verdict.outcome)), drawn)


def _versus(words: Markup | None, drawn: Markup) -> Markup:
    """Return a difference in words beside its drawing."""
    return element("div", element("div", words), drawn, class_="versus")
