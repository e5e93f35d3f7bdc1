"""The scores that reports know: their names, their direction, how many decimals they need."""

from __future__ import annotations

from dataclasses import dataclass

from elbowroom import checks


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score of one language in a record."""

    key: str
    """Its key in the record."""
    name: str
    """In a sentence."""
    label: str
    """At the head of a column."""
    lower_is_better: bool
    """Its direction."""
    decimals: int
    """How many decimals a table shows."""
    meaning: str
    """One sentence for who meets it first."""


SCORES = {
    score.key: score
    for score in (
        Score(
            key="ppl",
            name="perplexity",
            label="PPL",
            lower_is_better=True,
            decimals=2,
            meaning="perplexity at temperature 1",
        ),
        Score(
            key="fitted_ppl",
            name="perplexity at a fitted temperature",
            label="PPL, fitted T",
            lower_is_better=True,
            decimals=2,
            meaning="perplexity at the temperature that was fitted on other, held-out text",
        ),
        Score(
            key="best_ppl",
            name="perplexity at the best temperature",
            label="PPL, best T",
            lower_is_better=True,
            decimals=2,
            meaning="least perplexity over temperatures, chosen on the text it is measured on",
        ),
        Score(
            key="accuracy",
            name="accuracy",
            label="accuracy",
            lower_is_better=False,
            decimals=3,
            meaning="how often the right token is the first choice",
        ),
        Score(
            key="recall@5",
            name="recall at 5",
            label="recall@5",
            lower_is_better=False,
            decimals=3,
            meaning="how often the right token is among the first five",
        ),
        Score(
            key="mrr",
            name="mean reciprocal rank",
            label="MRR",
            lower_is_better=False,
            decimals=3,
            meaning="mean of 1 / rank of the right token",
        ),
        Score(
            key="bits_per_byte",
            name="bits per byte",
            label="bits/byte",
            lower_is_better=True,
            decimals=4,
            meaning="information needed for a byte of text, at temperature 1; "
            "compares across tokenizers",
        ),
        Score(
            key="calibration_error",
            name="calibration error",
            label="calibration error",
            lower_is_better=True,
            decimals=3,
            meaning="how far confidence is from accuracy",
        ),
        Score(
            key="foreign_mass",
            name="probability on other languages",
            label="foreign mass",
            lower_is_better=True,
            decimals=4,
            meaning="probability on tokens of other languages",
        ),
        Score(
            key="isotropy_signfree",
            name="isotropy",
            label="isotropy",
            lower_is_better=False,
            decimals=3,
            meaning="how evenly the embeddings use all directions, 1 at most",
        ),
    )
}
TERMINAL = ("ppl", "fitted_ppl", "accuracy", "mrr", "bits_per_byte")


def score_of(name: str, key: object) -> Score:
    """Return a known score by its key; ``name`` is the argument that an error blames."""
    return SCORES[checks.choice(name, key, tuple(SCORES))]
