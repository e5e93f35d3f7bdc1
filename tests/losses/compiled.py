"""What ``torch.compile`` must take without a graph break; `test_operator` runs this file.

It does so in a process of its own, without the checker of shapes, which cannot be traced.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch

import elbowroom as er
from elbowroom.losses.variants import Leaky, Softminus
from elbowroom.margins import Annealed, ByNorms
from tests.losses.problems import (
    ALL,
    MARGIN,
    OPTIONS,
    PROTECT,
    N,
    V,
    linear_problem,
    name,
    value_and_gradients,
)

# PyTorch warns of itself: tracing an autograd function instantiates one; inductor uses torch.jit.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
chunked_loss = partial(er.linear_thresholded_cross_entropy, backend="chunked")


def compiled_equals_eager(function, *inputs, backend="aot_eager", **tolerance):
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    torch.testing.assert_close(
        value_and_gradients(compiled, *inputs), value_and_gradients(function, *inputs), **tolerance
    )


@pytest.mark.parametrize("variant", ALL, ids=name)
def test_the_linear_loss_compiles_without_a_graph_break(variant):
    hidden, weight, bias, target = linear_problem()

    def loss(hidden, weight, bias):
        return chunked_loss(
            2 * hidden, weight, target, MARGIN, bias=bias, variant=variant, **OPTIONS["smooth"]
        )

    compiled_equals_eager(loss, hidden, weight, bias, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("variant", [None, Softminus(), Leaky(0.2)], ids=name)
def test_the_loss_of_logits_compiles_without_a_graph_break(variant):
    z, target = torch.randn(N, V, dtype=torch.float64), torch.arange(N)

    def loss(z):
        return er.thresholded_cross_entropy(z, target, MARGIN, variant=variant, protect=PROTECT)

    compiled_equals_eager(loss, z, rtol=1e-12, atol=1e-14)


def test_rules_statistics_and_reduction_none_compile_without_a_graph_break():
    hidden, weight, bias, target = linear_problem()
    progress = torch.tensor(0.5)
    rule = Annealed(ByNorms(0.1), ByNorms(0.5))

    def loss(hidden, weight, bias):
        value, stats = chunked_loss(
            hidden,
            weight,
            target,
            rule,
            bias=bias,
            progress=progress,
            stats=True,
            reduction="none",
            softcap=3.0,
        )
        return value + stats.log_probability + stats.kept

    compiled_equals_eager(loss, hidden, weight, bias, rtol=1e-12, atol=1e-14)


def test_a_compiled_module_follows_its_progress():
    torch.compiler.reset()
    hidden, weight, _, target = linear_problem()
    module = er.LinearThresholdedCrossEntropy(Annealed(0.5, 4.5))
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    losses = []
    for progress in (0.0, 0.5, 1.0):
        module.progress.fill_(progress)
        expected = chunked_loss(hidden, weight, target, 0.5 + 4 * progress)
        torch.testing.assert_close(compiled(hidden, weight, target), expected)
        losses.append(expected.item())
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.slow
def test_inductor_compiles_both_losses():
    hidden, weight, _, target = (x.detach() for x in linear_problem())

    def loss(hidden, weight):
        logits = er.thresholded_cross_entropy(hidden @ weight.T, target, MARGIN)
        return logits + chunked_loss(torch.tanh(hidden), weight, target, MARGIN)

    compiled_equals_eager(loss, hidden, weight, backend="inductor")
