"""How fast a head and its loss are, ours beside the peers that are installed.

`problem` makes or reads the data, `peers` knows what others offer, `rounds` lets all ways run in
turn and sums up their times, `limits` says what none can beat. The command ``elbowroom bench`` and
``benchmarks/bench_loss_cuda.py`` share it.
"""

from elbowroom.study.speed.limits import copy_rate, floor, matrix_rate
from elbowroom.study.speed.peers import (
    PEERS,
    Way,
    is_full,
    our_backend,
    ours,
    peer_ways,
    versions,
)
from elbowroom.study.speed.problem import Problem, Shape, kept, read, share_margins, synthetic
from elbowroom.study.speed.rounds import OutOfTime, Timer, fastest, measure, results, summary

__all__ = [
    "PEERS",
    "OutOfTime",
    "Problem",
    "Shape",
    "Timer",
    "Way",
    "copy_rate",
    "fastest",
    "floor",
    "is_full",
    "kept",
    "matrix_rate",
    "measure",
    "our_backend",
    "ours",
    "peer_ways",
    "read",
    "results",
    "share_margins",
    "summary",
    "synthetic",
    "versions",
]
