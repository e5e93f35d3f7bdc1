"""Randomness by counter on a GPU: the CPU's bits, eager, compiled and from a captured graph."""

from __future__ import annotations

import pytest
import torch

from elbowroom.lab.random import below, bits, uniform

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def counters(device):
    seed = torch.tensor([[-(2**63)], [-1], [0], [2**62 + 1]], device=device)
    position = torch.arange(5000, device=device)
    return seed, torch.tensor(2**40 + 3, device=device), torch.cat((position, position * 2**45))


def draw(seed, step, position):
    n = torch.tensor([[3], [97], [2**33 + 1], [2**40]], device=seed.device)
    given = (seed, 5, step, position)
    return bits(*given), uniform(*given), below(n, *given), below(97, *given)


def same(mine, theirs):
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(mine, theirs, strict=True))


def test_the_bits_are_the_cpus():
    assert same(draw(*counters("cuda")), draw(*counters("cpu")))


def test_a_captured_graph_reads_the_step():
    seed, step, position = counters("cuda")
    n = torch.tensor(1000, device="cuda")

    def sample():
        return uniform(seed, 5, step, position), below(n, seed, 5, step, position)

    sample()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = sample()
    for value in (0, 1, 2**40):
        step.fill_(value)
        graph.replay()
        assert same(out, sample())
        seeds, _, positions = counters("cpu")
        assert torch.equal(out[0].cpu(), uniform(seeds, 5, value, positions))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled():
    compiled = torch.compile(draw, fullgraph=True)
    assert same(compiled(*counters("cuda")), draw(*counters("cpu")))
