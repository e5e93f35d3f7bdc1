"""What the paper claims, and what this project adds, as comparisons over the same seeds."""

from __future__ import annotations

from dataclasses import dataclass

from elbowroom.study.paper.results import Study
from elbowroom.study.verdict import Verdict, verdicts

LANGUAGES = ("hr", "lr")
SCORE = "fitted_ppl"  # at the temperature that the protocol fits


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One method against another, in words."""

    text: str
    """What is claimed."""
    method: str
    """Whose runs should be better."""
    reference: str
    """Than whose."""


CLAIMS = (
    Claim(text="margin 1 against the baseline", method="margin-1", reference="ce-tied"),
    Claim(text="margin .6 against the baseline", method="margin-.6", reference="ce-tied"),
    Claim(
        text="rows truly skipped against plain AdamW, margin 1",
        method="skipped-1",
        reference="margin-1",
    ),
    Claim(
        text="rows truly skipped against plain AdamW, margin .6",
        method="skipped-.6",
        reference="margin-.6",
    ),
    Claim(text="untied against tied baseline", method="ce-untied", reference="ce-tied"),
    Claim(text="untied, margin 1 against baseline", method="untied-1", reference="ce-untied"),
    Claim(text="margin .3 to 16 against the baseline", method="margin-.3-16", reference="ce-tied"),
    Claim(
        text="the same, rare rows from zero, against the baseline",
        method="twins-.3-16",
        reference="ce-tied",
    ),
)


def judge(study: Study) -> dict[tuple[Claim, str], Verdict]:
    """Return a verdict on each claim and language that has runs, corrected for their number.

    Args:
        study: with the runs.
    """
    pairs = {}
    for claim in CLAIMS:
        for language in LANGUAGES:
            ours = study.values(claim.method, language, SCORE)
            theirs = study.values(claim.reference, language, SCORE)
            shared = [seed for seed in ours if seed in theirs]
            if shared:
                values = [ours[s] for s in shared], [theirs[s] for s in shared]
                pairs[claim, language] = values
    return verdicts(pairs, score=study.protocol.score_name)
