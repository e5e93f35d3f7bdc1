"""What measures speed, on a GPU: every peer that is there computes the same, and memory counts."""

from __future__ import annotations

import pytest
import torch

from elbowroom.study import speed

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of compilers and of peers
]


@pytest.mark.parametrize("clustered", [False, True])
def test_all_ways_run_and_agree(clustered: bool) -> None:
    shape = speed.Shape(512, 256, 8192)
    problem = speed.synthetic(shape, clustered=clustered, dtype=torch.bfloat16, device="cuda")
    ways = speed.peer_ways(problem) + speed.ours(problem, shares=[0.1])
    speed.measure(problem, ways, speed.Timer("cuda"), repetitions=2)
    found = {}
    for way in ways:
        if way.trouble.startswith(("not installed", "failed: RuntimeError: needs torch")):
            continue
        assert not way.trouble, way.name
        assert min(way.seconds) > 0
        assert way.peak is not None
        assert way.peak >= 0
        assert way.loss is not None
        found[way.name] = float(way.loss(*problem.leaves()).detach())
    own = found.pop("ours, 0.1 kept")
    want = found.pop("ours, margin inf")
    assert own < want
    for name, loss in found.items():
        assert loss == pytest.approx(want, rel=1e-2), name


def test_rates_are_a_gpus() -> None:
    timer = speed.Timer("cuda")
    assert speed.matrix_rate(timer, torch.bfloat16, "cuda", 4096) > 1e12
    assert speed.copy_rate(timer, "cuda", 2**28) > 1e10
