"""What the paper claims, and what this project adds, as comparisons over the same seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from elbowroom.study.paper.results import Study
from elbowroom.study.verdict import Verdict, verdicts

LANGUAGES = ("hr", "lr")
Question = Literal["help", "separated", "annealing"]
Judged = dict[tuple["Claim", str], Verdict]
SCORES = {  # what claims are judged by, and where that is measured
    "fitted_ppl": "at a fitted temperature",  # as the protocol fits it
    "ppl": "at temperature 1",
}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One method against another, in words."""

    question: Question
    """Which question it helps to answer."""
    about: str
    """What it belongs to among the answers to that question."""
    text: str
    """What is claimed."""
    method: str
    """Whose runs should be better."""
    reference: str
    """Than whose."""
    score: str = "fitted_ppl"
    """What is compared: one of `SCORES`."""


def _help() -> list[Claim]:
    def claim(name: str, tied: bool, margin: str, score: str) -> Claim:
        where = "tied" if tied else "untied"
        return Claim(
            question="help",
            about=f"{where}, {SCORES[score]}",
            text=f"margin {margin}, {where}, against the baseline",
            method=name,
            reference="ce-tied" if tied else "ce-untied",
            score=score,
        )

    tied = [claim(f"margin-{m}", True, m, s) for s in SCORES for m in ("2", "1", ".6")]
    return [*tied, *(claim(f"untied-{m}", False, m, s) for s in SCORES for m in ("2", "1"))]


def _separated() -> list[Claim]:
    rows = [("margin", "skipped", m) for m in ("2", "1", ".6")]
    rows += [("untied", "untied-skipped", m) for m in ("2", "1")]
    return [
        Claim(
            question="separated",
            about="rows truly skipped, tied" if plain == "margin" else "rows truly skipped, untied",
            text=f"margin {m}{', untied' if plain == 'untied' else ''}, rows truly skipped, "
            "against plain AdamW",
            method=f"{skipped}-{m}",
            reference=f"{plain}-{m}",
        )
        for plain, skipped, m in rows
    ]


def _annealing() -> list[Claim]:
    rows = [
        (about, f"{what}{more}", f"{kind}-{key}", reference, than)
        for what, key in (("margin .3 to 16", ".3-16"), ("margin 1 to top-p .999", "default"))
        for about, kind, more, reference, than in (
            ("tied", "margin", "", "ce-tied", "the baseline"),
            ("tied", "margin", "", "margin-1", "margin 1"),
            ("untied", "untied", ", untied,", "ce-untied", "the untied baseline"),
            ("rare rows from zero", "twins", ", zero rows,", "ce-tied", "the baseline"),
        )
    ]
    return [
        Claim(
            question="annealing",
            about=f"{about}, {at}",
            text=f"{what} against {than}",
            method=method,
            reference=reference,
            score=score,
        )
        for about, what, method, reference, than in rows
        for score, at in SCORES.items()
    ]


CLAIMS = (*_help(), *_separated(), *_annealing())


def judge(study: Study) -> Judged:
    """Return a verdict on each claim and language that has runs.

    Corrected for the number of all that are judged by one score.

    Args:
        study: with the runs.
    """
    found: Judged = {}
    for score, at in SCORES.items():
        pairs = {}
        for claim in CLAIMS:
            for language in LANGUAGES if claim.score == score else ():
                ours = study.values(claim.method, language, score)
                theirs = study.values(claim.reference, language, score)
                shared = [seed for seed in ours if seed in theirs]
                if shared:
                    values = [ours[s] for s in shared], [theirs[s] for s in shared]
                    pairs[claim, language] = values
        name = study.protocol.score_name if score == "fitted_ppl" else f"perplexity {at}"
        found |= verdicts(pairs, score=name)
    keys = ((claim, language) for claim in CLAIMS for language in LANGUAGES)
    return {key: found[key] for key in keys if key in found}
