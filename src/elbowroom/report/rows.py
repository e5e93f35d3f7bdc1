"""The comparison as tables of values: for a terminal, and to be written in any form."""

from __future__ import annotations

from collections.abc import Iterable

from elbowroom.report.numbers import ABSENT, between, fixed
from elbowroom.report.records import Comparison, Record, comparison, number
from elbowroom.report.scores import SCORES, TERMINAL, Score
from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import Interval
from elbowroom.study.verdict import Verdict, decimals_for

MOST_SEEDS = 5


def comparison_rows(
    records: Iterable[Record], *, references: tuple[str, ...] = (), score: str = "ppl"
) -> list[list[str]]:
    """Return the comparison as rows of strings for a terminal, the heading first.

    For each language and method: the judged score's mean, its seeds one by one, the other scores'
    means, the difference to the first reference with its interval, and the verdict.

    Args:
        records: one a run, as in its ``record.json``.
        references: see `comparison`.
        score: the one that is judged.

    Example:
        >>> common = {"init_seed": 0, "data_seed": 0, "status": "done"}
        >>> records = [
        ...     {"name": name, "languages": {"lr": {"ppl": ppl}}, **common}
        ...     for name, ppl in (("ce-tied", 10.6), ("ours", 8.9))
        ... ]
        >>> for row in comparison_rows(records):
        ...     print(row)
        ['language', 'method', 'PPL', 'by seed', 'difference', 'verdict']
        ['lr', 'ce-tied', '10.60', '10.60', '–', 'reference']
        ['lr', 'ours', '8.90', '8.90', '-1.7', 'undecided']
    """
    return comparison_table(comparison(records, references=references, score=score)).text()


def verdict_lines(comparison: Comparison) -> list[str]:
    """Return each verdict as one line of text.

    Example:
        >>> from elbowroom.report.records import comparison
        >>> common = {"data_seed": 0, "init_seed": 0, "status": "failed", "languages": {"lr": {}}}
        >>> runs = comparison([{"name": name, **common} for name in ("ce-tied", "ours")])
        >>> verdict_lines(runs)
        ['lr: ours against ce-tied: undecided: no seed finished with both methods']
    """
    found = comparison.verdicts.items()
    return [f"{lang}: {method} against {ref}: {v.text}" for (lang, method, ref), v in found]


def comparison_table(comparison: Comparison) -> Table:
    """Return one table of all languages: the scores' means, the difference and the verdict."""
    judged = comparison.score
    others = [SCORES[k] for k in TERMINAL if k != judged.key and comparison.has(k)]
    columns = [
        Column(label="language", text=True),
        Column(label="method", text=True),
        Column(label=judged.label, decimals=judged.decimals),
        Column(label="by seed", text=True),
        *(Column(label=score.label, decimals=score.decimals) for score in others),
        Column(label="difference", text=True),
        Column(label="verdict", text=True),
    ]
    rows: list[list[Cell]] = []
    for language in comparison.languages:
        for method in comparison.methods:
            mean = comparison.mean(method, language, judged.key)
            middle = (comparison.mean(method, language, score.key) for score in others)
            found = comparison.verdicts.get((language, method, comparison.references[0]))
            rows.append(
                [
                    language,
                    method,
                    _estimate(mean),
                    _seeds(comparison, method, language),
                    *(_estimate(value) for value in middle),
                    _difference(found),
                    found.outcome if found else "reference",
                ]
            )
    return Table(title=f"{judged.label} by language", columns=columns, rows=rows)


def score_table(comparison: Comparison, language: str, score: Score) -> Table:
    """Return one score of one language: mean, a new seed's range, differences to each reference.

    The differences have intervals and no verdict: only one score is judged.
    """
    columns = [
        Column(label="method", text=True),
        Column(label="seeds"),
        Column(label="mean", decimals=score.decimals),
        *(
            Column(label=f"minus {reference}", decimals=score.decimals + 1, sign=True)
            for reference in comparison.references
        ),
    ]
    judged = comparison.judge(score)
    rows: list[list[Cell]] = []
    for method in comparison.methods:
        found = [judged.get((language, method, ref)) for ref in comparison.references]
        differences = (v.difference.interval if v and v.difference else None for v in found)
        mean = comparison.mean(method, language, score.key)
        rows.append([method, mean.n if mean else 0, mean, *differences])
    return Table(title=f"{language}: {score.meaning}", columns=columns, rows=rows)


def runs_table(comparison: Comparison) -> Table:
    """Return every run with its scores, one a row."""
    columns = [
        Column(label="method", text=True),
        Column(label="init seed"),
        Column(label="data seed"),
        Column(label="status", text=True),
        Column(label="steps"),
    ]
    keys = [key for key in ("kept", "translation") if _known(comparison, key)]
    columns += [Column(label=key, decimals=3) for key in keys]
    scores = [(lang, comparison.score) for lang in comparison.languages]
    columns += [Column(label=f"{la} {s.label}", decimals=s.decimals) for la, s in scores]
    rows: list[list[Cell]] = []
    for run in sorted(comparison.runs, key=lambda r: (comparison.methods.index(r.name), r.seeds)):
        steps = number(run.record.get("steps"))
        first: list[Cell] = [
            run.name,
            *run.seeds,
            run.status,
            None if steps is None else int(steps),
        ]
        first += [number(run.record.get(key)) for key in keys]
        rows.append([*first, *(number(run.scores(lang).get(s.key)) for lang, s in scores)])
    return Table(title="Every run", columns=columns, rows=rows)


def difference_text(interval: Interval) -> str:
    """Return a difference and its interval, two digits each.

    Example:
        >>> difference_text(Interval(estimate=-1.66, low=-1.98, high=-1.35, level=0.95, n=5))
        '-1.7 [-2.0 to -1.4]'
    """
    digits = decimals_for(interval)
    value, ends = fixed(interval.estimate, digits, sign=True), between(interval, digits, sign=True)
    return value if ends == ABSENT else f"{value} [{ends}]"


def _known(comparison: Comparison, key: str) -> bool:
    return any(run.record.get(key) is not None for run in comparison.runs)


def _estimate(interval: Interval | None) -> float | None:
    return interval.estimate if interval else None


def _difference(verdict: Verdict | None) -> str:
    found = verdict.difference if verdict else None
    return ABSENT if found is None else difference_text(found.interval)


def _seeds(comparison: Comparison, method: str, language: str) -> str:
    """Return every seed's value, or the least and the greatest where there are many."""
    score = comparison.score
    values = list(comparison.values(method, language, score.key).values())
    if len(values) <= MOST_SEEDS:
        return " ".join(fixed(value, score.decimals) for value in values) or ABSENT
    low, high = fixed(min(values), score.decimals), fixed(max(values), score.decimals)
    return f"{low} to {high}, {len(values)} seeds"
