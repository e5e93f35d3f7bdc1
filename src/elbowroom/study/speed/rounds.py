"""Let all ways run in turn on the same data, in one process, and sum up what was measured.

What else the machine does then hits all alike, and a ratio compares two times of one round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from elbowroom.errors import ElbowroomError
from elbowroom.study.speed.peers import Way, said
from elbowroom.study.speed.problem import Problem

BUSY = 2**28  # bytes written before each measurement on CUDA, so that the host gets ahead
ENOUGH = 5  # rounds; fewer than these are no result where time runs out


class OutOfTime(ElbowroomError):  # noqa: N818 - it says that we stop, not that something is wrong
    """Time ran out before there were enough rounds."""


class Timer:
    """Measures work by events on CUDA, where the device is kept busy before it; else by the clock.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: str | torch.device) -> None:
        self.cuda = torch.device(device).type == "cuda"
        self._busy = torch.empty(BUSY if self.cuda else 0, dtype=torch.int8, device=device)

    def __call__(self, work: Callable[[], object]) -> float:
        """Return the seconds that some work takes."""
        if not self.cuda:
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        make: Any = torch.cuda.Event
        first, last = make(enable_timing=True), make(enable_timing=True)
        torch.cuda.synchronize()
        for _ in range(4):
            self._busy.zero_()
        first.record()
        work()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3

    def peak(self, work: Callable[[], object], own: int) -> int | None:
        """Return the bytes that some work takes at its highest point; None on a CPU.

        Args:
            work: runs once.
            own: bytes that do not count: the gradients.
        """
        if not self.cuda:
            return None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated()) - before - own


def measure(
    problem: Problem,
    ways: Sequence[Way],
    timer: Timer,
    *,
    repetitions: int = 7,
    deadline: float = float("inf"),
    on_step: Callable[[int, int], object] = lambda done, total: None,
) -> None:
    """Time forward and backward of all ways in turn, round by round, in an order that rotates.

    Every way runs before the first measured round, for its kernels to be compiled and its memory to
    be measured. One that fails says so in ``trouble``, and the others go on.

    Args:
        problem: the data.
        ways: what to measure; they are filled.
        timer: of the problem's device.
        repetitions: measured rounds.
        deadline: by `time.monotonic`; past it no round begins. `OutOfTime` if too few were done.
        on_step: is called with what is done and what there is in all.
    """
    leaves = problem.leaves()
    order = list(ways)
    total = (repetitions + 2) * len(order)
    done = 0
    for turn in range(-2, repetitions):  # two rounds do not count: in the first, ways compile
        if time.monotonic() > deadline:
            if turn >= min(ENOUGH, repetitions):
                return
            raise OutOfTime(f"stopped after {max(turn, 0)} of {repetitions} rounds")
        for way in order:
            if not way.trouble:
                _step(way, leaves, timer, turn)
            done += 1
            on_step(done, total)
        order = order[1:] + order[:1]


def results(ways: Sequence[Way]) -> list[dict[str, Any]]:
    """Return a row a way as plain data, with ratios to the fastest peers in the same round.

    ``ratio`` compares with the fastest dense peer, ``ratio_any`` with the fastest of all; which
    these are, medians say.

    Args:
        ways: measured.

    Example:
        >>> a = Way("a", None, peer=True, seconds=[2.0, 4.0])
        >>> b = Way("b", None, seconds=[1.0, 1.0])
        >>> [row["ratio"]["median"] for row in results([a, b])]
        [1.0, 0.375]
    """
    dense, whatever = fastest(ways), fastest(ways, dense=False)
    rows = []
    for way in ways:
        rows.append(
            {
                "method": way.name,
                "peer": way.peer,
                "dense": way.dense,
                "margin": None if way.margin is None else f"{way.margin:g}",
                "share": way.share,
                "kept": float(f"{way.kept:.5g}"),
                "strips": float(f"{way.strips:.5g}"),
                "seconds": summary(way.seconds) if way.seconds else None,
                "ratio": _ratios(way, dense),
                "ratio_any": _ratios(way, whatever),
                "peak_bytes": way.peak,
                "trouble": way.trouble,
                "all_seconds": [float(f"{x:.5g}") for x in way.seconds],
            }
        )
    return rows


def fastest(ways: Sequence[Way], *, dense: bool = True) -> Way | None:
    """Return the peer with the smallest median, if any was measured.

    Args:
        ways: measured.
        dense: among peers only that leave nothing out.

    Example:
        >>> fastest([Way("ours", None, seconds=[1.0])]) is None
        True
    """
    peers = [way for way in ways if way.peer and way.seconds and (way.dense or not dense)]
    return min(peers, key=lambda way: statistics.median(way.seconds), default=None)


def summary(x: Sequence[float]) -> dict[str, float]:
    """Return the median and where the lowest and the highest fifth end, to five digits.

    Args:
        x: at least one number.

    Example:
        >>> summary([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        {'median': 3.5, 'p20': 2.0, 'p80': 5.0}
    """
    cuts = statistics.quantiles(x, n=5, method="inclusive") if len(x) > 1 else [x[0]] * 4
    found = {"median": statistics.median(x), "p20": cuts[0], "p80": cuts[3]}
    return {name: float(f"{value:.5g}") for name, value in found.items()}


def _ratios(way: Way, peer: Way | None) -> dict[str, float] | None:
    if peer is None or not way.seconds:
        return None
    return summary([a / b for a, b in zip(way.seconds, peer.seconds, strict=True)])


def _step(way: Way, leaves: tuple[Tensor, Tensor], timer: Timer, turn: int) -> None:
    """Run a way once; note its memory in the second round and its time from the third."""
    assert way.loss is not None
    loss = way.loss

    def work() -> None:
        loss(*leaves).backward()  # type: ignore[no-untyped-call]

    try:
        if turn == -1:
            way.peak = timer.peak(work, sum(x.nbytes for x in leaves))
        seconds = timer(work) if turn != -1 or way.peak is None else 0.0
        if turn >= 0:
            way.seconds.append(seconds)
    except Exception as error:  # whatever a peer does: the others go on
        way.trouble, way.seconds, way.peak = said(error), [], None
    finally:
        for leaf in leaves:
            leaf.grad = None
    if way.trouble and timer.cuda:
        torch.cuda.empty_cache()
