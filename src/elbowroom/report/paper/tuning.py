"""The rivals' table: how each family was tuned, and where its choice stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from elbowroom.report.markup import Markup, element, join
from elbowroom.report.numbers import ABSENT, between, fixed, typographic
from elbowroom.report.results import badge
from elbowroom.report.tables import Cell, Column, Table
from elbowroom.study import Interval, Verdict, mean_interval, verdicts
from elbowroom.study.paper import Study
from elbowroom.study.paper.families import REFERENCES
from elbowroom.study.paper.tuning import LANGUAGES, SCORE, Trial, Tuning

RULE = (
    "Chosen by the lowest mean, over these seeds and both languages, of the logarithm of "
    "perplexity at a temperature fitted on other text; its exponential is shown. These seeds are "
    "not reported, and the reported ones chose nothing. Both read the same held-out text, for "
    "every method alike."
)
STANDING = (
    "Means over the reported seeds, of perplexity at a fitted temperature with their 95% interval. "
    "Differences of perplexity are to {}, over the same seeds; whether one is better or worse is "
    "corrected for the number of comparisons. Notes on methods stand below all scores."
)
FAILED = "failed"


def tuning_table(found: Mapping[str, Tuning]) -> Table:
    """Return every setting that was tried, with what the tuning found of it.

    Args:
        found: by family.
    """
    columns = [
        Column(label="method", text=True),
        Column(label="setting", text=True),
        Column(label="runs", text=True),
        Column(label="perplexity, by seed", text=True),
        Column(label="geometric mean", decimals=3),
        Column(label="outcome", text=True),
    ]
    rows: list[list[Cell]] = []
    for tuning in found.values():
        for trial in tuning.trials:
            setting = trial.setting
            chosen = "chosen" if setting is tuning.chosen else ""
            row: list[Cell] = [tuning.family.label, setting.words, setting.method, _seeds(trial)]
            rows.append([*row, _perplexity(trial.mean), chosen if trial.scores else "not tried"])
    return Table(title="The tuning: every setting that was tried", columns=columns, rows=rows)


def budget_line(found: Mapping[str, Tuning]) -> str:
    """Return what each method was given, and which methods are not tuned."""
    trials = [trial for tuning in found.values() for trial in tuning.trials if trial.scores]
    if not trials:
        return "Nothing is tuned yet: no record is of a run that tunes."
    most = max(sum(bool(trial.scores) for trial in tuning.trials) for tuning in found.values())
    seeds = sorted({seed for trial in trials for seed in trial.scores})
    runs = len({(t.setting.method, seed) for t in trials for seed in t.scores})
    listed = " and ".join(map(str, seeds))
    word = "seed" if len(seeds) == 1 else "seeds"
    said = (
        f"Each method had {most} settings, each trained with {word} {listed}: {runs} runs in all."
    )
    left = [tuning.family.label for tuning in found.values() if tuning.chosen is None]
    return said + (f" Without a choice: {', '.join(left)}." if left else "")


def standing_note(found: Mapping[str, Tuning]) -> str:
    """Return what the table of standings shows."""
    named = (
        (found[name].family.label, short) for name, short in REFERENCES.items() if name in found
    )
    return STANDING.format(" and to ".join(f"“{label}” ({short})" for label, short in named))


def standing_lines(study: Study, found: Mapping[str, Tuning]) -> list[str]:
    """Return in words who is better and who is worse than each reference, by language.

    Args:
        study: our runs.
        found: what the tuning chose, by family.
    """
    judged, lines = _judge(study, found), []
    for reference in REFERENCES:
        for language in LANGUAGES:
            own = {
                found[name].family.label: verdict.outcome
                for (name, other, spoken), verdict in judged.items()
                if (other, spoken) == (reference, language)
            }
            if own:
                better, worse = (_named(own, outcome) for outcome in ("better", "worse"))
                against = f"{language}, against “{found[reference].family.label}”"
                rest = f"{list(own.values()).count('undecided')} of {len(own)}"
                lines.append(f"{against}. Better: {better}. Worse: {worse}. Undecided: {rest}.")
    return lines


def standing_table(study: Study, found: Mapping[str, Tuning], *, markup: bool = False) -> Table:
    """Return where each tuned method stands, against cross-entropy and against ours.

    Args:
        study: our runs.
        found: what the tuning chose, by family.
        markup: with marks, for a page; else in words.
    """
    judged = _judge(study, found)
    named = [name for name in REFERENCES if name in found]
    columns = [Column(label="method", text=True)]
    columns += [Column(label=f"{language}: PPL") for language in LANGUAGES]
    columns += [
        Column(label=f"{language}: to {REFERENCES[name]}")
        for name in named
        for language in LANGUAGES
    ]
    columns += [Column(label=f"{language}: accuracy", decimals=4) for language in LANGUAGES]
    rows: list[list[Cell]] = []
    for name, tuning in found.items():
        if tuning.chosen is None:
            continue
        method = tuning.chosen.method
        label, words = tuning.family.label, tuning.chosen.words
        first = element("span", element("bdi", label), class_="method")
        shown = join(first, element("span", words, class_="ends"))
        row: list[Cell] = [shown if markup else f"{label}: {words}"]
        row += [_mean(study, method, language, SCORE) for language in LANGUAGES]
        row += [
            _difference(judged.get((name, reference, language)), markup=markup)
            for reference in named
            for language in LANGUAGES
        ]
        accuracies = [_mean(study, method, language, "accuracy") for language in LANGUAGES]
        rows.append([*row, *(mean and mean.estimate for mean in accuracies)])
    return Table(title="Where each method stands", columns=columns, rows=rows)


def _judge(study: Study, found: Mapping[str, Tuning]) -> dict[tuple[str, str, str], Verdict]:
    """Return the verdicts on each family, reference and language, corrected for their number."""
    pairs: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {}
    chosen = {name: t.chosen.method for name, t in found.items() if t.chosen is not None}
    for reference in REFERENCES:
        for name, method in chosen.items():
            if chosen.get(reference, method) == method:
                continue
            for language in LANGUAGES:
                ours = study.values(method, language, SCORE)
                theirs = study.values(chosen[reference], language, SCORE)
                shared = [seed for seed in ours if seed in theirs]
                values = [ours[s] for s in shared], [theirs[s] for s in shared]
                if shared:
                    pairs[name, reference, language] = values
    return verdicts(pairs)


def _named(outcomes: Mapping[str, str], outcome: str) -> str:
    return "; ".join(label for label, o in outcomes.items() if o == outcome) or "none"


def _mean(study: Study, method: str, language: str, score: str) -> Interval | None:
    values = list(study.values(method, language, score).values())
    return mean_interval(values) if values else None


def _difference(verdict: Verdict | None, *, markup: bool) -> Cell | Markup:
    """Return a difference of perplexity with its interval and what it comes to."""
    if verdict is None or verdict.difference is None:
        return None
    interval = verdict.difference.interval
    value, ends = fixed(interval.estimate, 2, sign=True), between(interval, 2, sign=True)
    if not markup:
        return f"{verdict.outcome} {value}" + ("" if ends == ABSENT else f" [{ends}]")
    shown = None if ends == ABSENT else element("span", typographic(ends), class_="ends")
    return join(badge(verdict.outcome), " ", typographic(value), shown)


def _seeds(trial: Trial) -> str:
    listed: Sequence[float] = [score for _, score in sorted(trial.scores.items())]
    return " ".join(FAILED if math.isinf(x) else fixed(math.exp(x), 3) for x in listed)


def _perplexity(mean: float | None) -> Cell:
    return None if mean is None else FAILED if math.isinf(mean) else math.exp(mean)
