"""How runs are made and judged: by the paper's rules, by clean ones, and by neither.

What tells protocols apart are the texts of the two languages, which weights of a run are judged,
and on which text its temperature is fitted. A run's configuration says by which it was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elbowroom.lab.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One way to make and judge runs."""

    name: str
    """What ``--protocol`` calls it."""
    change: Mapping[str, Any] = field(default_factory=dict)
    """What it changes in the configuration that all runs have in common."""
    quick: Mapping[str, Any] = field(default_factory=dict)
    """What it changes in short runs besides."""
    scores: Mapping[str, str] = field(default_factory=dict)
    """Score: what records call it, where that is something else."""
    compared: bool = True
    """Whether the texts are the paper's, so that its numbers can be judged by ours."""
    score_name: str
    """The score that claims are judged by, in words."""
    note: str
    """What it is, in words."""


PAPER = Protocol(
    name="paper",
    change={"training": {"keep": {"which": "best", "every": 250, "batches": 20}}},
    quick={"training": {"keep": {"every": 60, "batches": 10}}},
    scores={"fitted_ppl": "best_ppl", "fitted_temperature": "best_temperature"},
    score_name="perplexity at the temperature that is best on the test text",
    note="The paper's protocol: both languages read the same text; of each run those weights are "
    "judged that had the lowest loss at one of the checks, every 250 steps on 20 random batches of "
    "the validation text; and temperatures are the best on the test text itself.",
)
CLEAN = Protocol(
    name="clean",
    change={"data": {"source": "shakespeare?pair=disjoint&part=0.2"}},
    compared=False,
    score_name="perplexity at a fitted temperature",
    note="The clean protocol: each language reads a text of its own, the frequent one the first "
    "four fifths of training and of validation text, the rare one the last fifth; the last iterate "
    "is judged; and temperatures are fitted on held-out text other than what they are judged on. "
    "The paper's numbers are of other texts, so they stand beside ours and judge nothing.",
)
LAST = Protocol(
    name="last",
    score_name="perplexity at a fitted temperature",
    note="These runs follow neither protocol: both languages read the same text, as in the paper, "
    "but the last iterate is judged, and temperatures are fitted on held-out text other than what "
    "they are judged on. The paper chose checkpoints by a noisy validation loss and temperatures "
    "on the test text.",
)
PROTOCOLS: dict[str, Protocol] = {each.name: each for each in (PAPER, LAST, CLEAN)}
"""By name; those that are judged against print first."""


def protocol_of(run: RunConfig) -> Protocol:
    """Return the protocol that a run was made by.

    Example:
        >>> from elbowroom.lab.config import run_config
        >>> protocol_of(run_config({"training": {"keep": "best"}})).name
        'paper'
        >>> protocol_of(run_config({"data": {"source": "shakespeare?pair=disjoint"}})).name
        'clean'
        >>> protocol_of(run_config({})).name
        'last'
    """
    if run.training.keep.which == "best":
        return PAPER
    options = run.data.source.rpartition("?")[2].split("&")
    return CLEAN if "pair=disjoint" in options else LAST
