"""The questions that a reproduction answers in words, each sentence from records of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elbowroom.study.paper.claims import LANGUAGES, Claim, Judged, judge
from elbowroom.study.paper.curves import discoverers
from elbowroom.study.paper.layout import SE, TABLES, UNTIED_SE, Part, Row
from elbowroom.study.paper.printed import KNOWN_SLIPS, LABELS, SCORES
from elbowroom.study.paper.results import Study
from elbowroom.study.statistics import mean_interval, wilson_interval
from elbowroom.study.verdict import OUTCOMES, Verdict

QUESTIONS = {
    "help": "Does thresholding help, tied and untied?",
    "seed": "Is it the seed?",
    "separated": "What do separated embeddings do, as published and truly skipped?",
    "slips": "Which slips are in print?",
    "annealing": "What does annealing the margin change?",
}
LUCKY = {"se-1": "margin-1", "se-.6": "margin-.6", "se-alpha-.0625": "alpha-.0625"}
FIXED = ("ce-tied", "margin-8", "margin-4", "margin-2", "margin-1", "margin-.6", "margin-.5")
FEWEST = 3  # seeds for a word on their spread


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A question, what the runs say to it, and the comparisons that this rests on."""

    question: str
    """As a person would ask it."""
    sentences: tuple[str, ...]
    """The answer."""
    claims: tuple[tuple[Claim, str, Verdict], ...] = ()
    """The comparisons, each with its language."""


def answers(study: Study) -> list[Answer]:
    """Return the answers that the runs allow; a question without any is left out.

    Args:
        study: with the runs.
    """
    judged, found = judge(study), []
    for key, question in QUESTIONS.items():
        claims = tuple((c, la, v) for (c, la), v in judged.items() if c.question == key)
        more = _MORE[key](study) if key in _MORE else []
        sentences = (*_outcomes(judged, key), *more)
        if sentences:
            found.append(Answer(question=question, sentences=sentences, claims=claims))
    return found


def _outcomes(judged: Judged, question: str) -> list[str]:
    """Return a sentence for each kind of comparison: how often it came out how."""
    kinds = dict.fromkeys(claim.about for claim, _ in judged if claim.question == question)
    sentences = []
    for about in kinds:
        said = []
        for language in LANGUAGES:
            own = [
                v.outcome
                for (claim, la), v in judged.items()
                if (claim.question, claim.about, la) == (question, about, language)
            ]
            counts = [f"{o} in {own.count(o)}" for o in OUTCOMES if o in own]
            said += [f"{language} {', '.join(counts)} of {len(own)}"] if own else []
        sentences.append(f"{about[:1].upper()}{about[1:]}: {'; '.join(said)}.")
    return sentences


def _seed(study: Study) -> list[str]:
    """Say how far starts lie apart, beside methods, and how often the printed luck is had."""
    sentences = []
    values = {m: list(study.values(m, "lr", "fitted_ppl").values()) for m in FIXED}
    spread = {m: (min(x), max(x)) for m, x in values.items() if len(x) >= FEWEST}
    if len(spread) > 1:
        method, (low, high) = max(spread.items(), key=lambda item: item[1][1] - item[1][0])
        means = [sum(values[m]) / len(values[m]) for m in spread]
        sentences.append(
            f"For the rare language, at a fitted temperature, starts of one method differ by up to "
            f"{high - low:.2f} ({method}: {low:.2f} to {high:.2f}), the means of "
            f"{len(means)} methods (cross-entropy and fixed margins, tied) by "
            f"{max(means) - min(means):.2f}."
        )
    return [
        *sentences,
        *_discoveries(study),
        *(said for row, method in LUCKY.items() for said in _luck(study, row, method)),
    ]


def _discoveries(study: Study) -> list[str]:
    """Say which starts discovered the letters that the languages share, method by method."""
    said = []
    for method in FIXED:
        found = discoverers(study, method)
        seeds = [str(seed) for seed, yes in sorted(found.items()) if yes]
        which = f" (seed {', '.join(seeds)})" if seeds else ""
        said += [f"{method} in {len(seeds)} of {len(found)}{which}"] if len(found) >= FEWEST else []
    if not said:
        return []
    return [f"Runs that discovered the letters which the languages share: {'; '.join(said)}."]


def _luck(study: Study, row: str, method: str) -> list[str]:
    """Say how many of our starts are as good as one that is printed."""
    row_of = next(r for part in TABLES for r in part.rows if r.printed == row)
    found = study.result(row_of, "lr", "fitted_ppl")
    if len(found.values) < FEWEST or found.printed is None or not found.comparable:
        return []
    n, good = len(found.values), [s for s, x in found.values.items() if x <= found.printed.value]
    share = wilson_interval(len(good), n)
    seeds = f" (seed {', '.join(map(str, sorted(good)))})" if good else ""
    return [
        f"{row_of.label}, lr: {len(good)} of our {n} starts{seeds} reach the printed "
        f"{found.printed.text}: a share of {100 * (share.low or 0):.0f} to "
        f"{100 * (share.high or 0):.0f}% (95% interval)."
    ]


def _separated(study: Study) -> list[str]:
    """Say how the printed rows with separated embeddings compare with runs without them."""
    rows = [r for part in TABLES for r in part.rows if r.note.startswith((SE, UNTIED_SE))]
    inside, of = study.tally([_part(rows)])
    if not of:
        return []
    return [
        "As published they are plain AdamW: the gradients of untouched rows are zeros, not "
        f"missing. {inside} of the {of} numbers printed of them lie where one more of our runs "
        "without them would lie."
    ]


def _slips(study: Study) -> list[str]:
    """List what is printed and cannot be meant, and whether our runs agree with what was meant."""
    sentences = []
    for row in _distinct(row for part in TABLES for row in part.rows):
        for language in row.languages:
            for score in SCORES:
                found = study.result(row, language, score)
                if found.printed is None or not found.printed.note or found.mean is None:
                    continue
                agree = {True: "agree with", False: "do not agree with", None: "cannot judge"}
                sentences.append(
                    f"{row.label}, {language}, {LABELS[score]}: {found.printed.text} is printed, "
                    f"{found.printed.meant} was meant; our runs "
                    f"({found.mean.estimate:.4f}) {agree[found.inside]} the latter."
                )
    return [*KNOWN_SLIPS, *sentences] if study.records else []


def _annealing(study: Study) -> list[str]:
    """Say which temperature fits, with a margin that grows and with one that does not."""
    said = []
    for method, label in (("margin-1", "a fixed margin of 1"), ("margin-.3-16", "margin .3 to 16")):
        for language in LANGUAGES:
            fitted = study.values(method, language, "fitted_temperature")
            if fitted:
                mean = mean_interval(list(fitted.values())).estimate
                said.append(f"{mean:.2f} with {label} ({language})")
    return [f"The temperature that fits best is, on average, {', '.join(said)}."] if said else []


def _distinct(rows: Iterable[Row]) -> list[Row]:
    return list({row.printed: row for row in rows if row.printed}.values())


def _part(rows: Sequence[Row]) -> Part:
    return Part(name="rows", title="Rows", rows=tuple(rows))


_MORE = {"seed": _seed, "separated": _separated, "slips": _slips, "annealing": _annealing}
