"""Studies: what several runs say together, with how sure they are.

`statistics` has the intervals and exact tests over seeds, `verdict` the words for them.
"""

from elbowroom.study.statistics import (
    Interval,
    PairedDifference,
    holm,
    mean_interval,
    paired_difference,
    prediction_interval,
    wilson_interval,
)
from elbowroom.study.verdict import Verdict, verdict, verdicts

__all__ = [
    "Interval",
    "PairedDifference",
    "Verdict",
    "holm",
    "mean_interval",
    "paired_difference",
    "prediction_interval",
    "verdict",
    "verdicts",
    "wilson_interval",
]
