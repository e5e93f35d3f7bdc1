"""What ``torch.compile`` must take without a graph break; `test_model` runs this file.

It does so in a process of its own, without the checker of shapes, which cannot be traced.
"""

from __future__ import annotations

import pytest
import torch

from elbowroom.lab.model import GPT, ModelConfig
from elbowroom.lab.population import Population
from elbowroom.lab.random import below, bits, uniform
from elbowroom.lab.schedule import Schedule
from tests.lab.toy import corpus, run

# PyTorch warns of itself: inductor uses torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
MODERN = {"norm": "rms", "position": "rotary", "mlp": "swiglu"}


def test_random_numbers_have_the_same_bits():
    def draw(seed, step, position):
        counters = (seed, 5, step, position)
        return bits(*counters), uniform(*counters), below(97, *counters)

    # inductor: its code must wrap around, too
    compiled = torch.compile(draw, fullgraph=True, backend="inductor")
    seed = torch.tensor([[-(2**63)], [-1], [0], [2**62 + 1]])
    for step in (0, 2**40):
        given = (seed, torch.tensor(step), torch.arange(1001))
        for mine, theirs in zip(compiled(*given), draw(*given), strict=True):
            assert torch.equal(mine, theirs)


@pytest.mark.parametrize(
    ("runs", "options", "backend", "dtype"),
    [
        (1, {}, "aot_eager", torch.float64),
        (3, MODERN, "aot_eager", torch.float64),
        (1, {}, "inductor", torch.float32),  # eager mode may take another routine for products
    ],
)
def test_the_model(runs, options, backend, dtype):
    torch.compiler.reset()
    torch.manual_seed(0)  # there is no conftest here
    config = ModelConfig(vocab_size=11, layers=1, heads=2, width=8, context=6, **options)
    model = GPT(config, range(runs)).to(dtype)
    ids = torch.randint(11, (runs, 2, 6))
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    parameters = list(model.parameters())
    results = []
    for function in (model, compiled):
        hidden = function(ids)
        results.append((hidden, torch.autograd.grad(hidden.sin().sum(), parameters)))
    digits = 1e-9 if dtype == torch.float64 else 1e-4  # the start's small rows magnify rounding
    torch.testing.assert_close(*results, rtol=digits, atol=digits)


def test_the_schedule():
    schedule = Schedule(lr=torch.tensor([1e-3, 1e-2]), warmup=2, steps=10)
    compiled = torch.compile(schedule.at, fullgraph=True, backend="aot_eager")
    for step in range(4):
        torch.testing.assert_close(compiled(torch.tensor(step)), schedule.at(step))


def test_populations_of_many_shapes_are_compiled_each_in_one_piece(monkeypatch):
    graphs, real = [], torch.compile

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda f, **more: real(f, backend=counting, **more))
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for count in range(1, 5):
            runs = [run(name=f"r{i}", training={"compile": True}) for i in range(count)]
            Population(runs, corpus(), torch.device("cpu")).advance(2)
            assert len(graphs) == count
