"""The GPT on a GPU: the CPU's values, the same bits again, nothing waits, a graph holds it."""

from __future__ import annotations

import pytest
import torch

from elbowroom.lab.model import GPT, ModelConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MODERN = {"norm": "rms", "position": "rotary", "mlp": "swiglu", "tied": False}


def step(model, ids):
    """Return the hidden states, and the gradients of something that depends on head and body."""
    hidden = model(ids)
    z = torch.bmm(hidden.flatten(1, 2), model.head.mT)
    total = (z.logsumexp(-1) - z[..., 3]).mean(1).sum()
    return hidden, *torch.autograd.grad(total, list(model.parameters()))


def problem(runs, options, dtype=torch.float32):
    config = ModelConfig(layers=2, **options)
    model = GPT(config, range(runs)).to("cuda", dtype)
    return model, torch.randint(130, (runs, 12, 64), device="cuda")


@pytest.mark.parametrize("options", [{}, MODERN])
@pytest.mark.parametrize("runs", [1, 5])
def test_values_are_the_cpus(runs, options):
    model, ids = problem(runs, options, torch.float64)
    on_gpu = step(model, ids)
    on_cpu = step(model.cpu(), ids.cpu())
    for mine, theirs in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("options", [{}, MODERN])
@pytest.mark.parametrize("runs", [1, 40])
def test_the_same_bits_again_without_waiting(runs, options):
    model, ids = problem(runs, options)
    first = step(model, ids)
    torch.cuda.set_sync_debug_mode("error")
    try:
        again = step(model, ids)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize("runs", [1, 5])
def test_a_graph_holds_a_step(runs):
    model, ids = problem(runs, {})
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(model, ids)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step(model, ids)
    ids.copy_(torch.randint(130, ids.shape, device="cuda"))
    graph.replay()
    assert all(map(torch.equal, out, step(model, ids)))
