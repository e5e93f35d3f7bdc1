"""The recorder against autograd with copies of the embedding; ratios against lists of steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from elbowroom import checks, diagnose
from elbowroom.diagnose import GradientNorms, GradientRatios, GradientTypes
from elbowroom.errors import ArgumentTypeError, ArgumentValueError

V, D = 9, 4


def close(a, b, **options):
    torch.testing.assert_close(a, b, **options)


class Body(nn.Module):
    """A little causal body: each position mixes what came before it."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(D, D)

    def forward(self, x):
        return torch.tanh(self.mix(x.cumsum(-2)))


def threshold(z, y, margin):
    keep = F.one_hot(y, V).bool() | (z >= z.gather(-1, y[..., None]).detach() - margin)
    return z.masked_fill(~keep, -torch.inf)


def data(*shape):
    ids = torch.randint(V, (*shape[:-1], shape[-1] + 1))
    return ids[..., :-1], ids[..., 1:]


def oracle(embedding, body, ids, y, margin, head=None):
    """Gradients of a model that has one copy of its embedding for each of its uses."""
    weight = embedding.weight.detach()
    as_input = weight.clone().requires_grad_()
    head = weight if head is None else head
    as_target, as_other = head.clone().requires_grad_(), head.clone().requires_grad_()
    h = body(F.embedding(ids, as_input))
    z = torch.where(F.one_hot(y, V).bool(), h @ as_target.T, h @ as_other.T)
    loss = F.cross_entropy(threshold(z, y, margin).flatten(0, -2), y.flatten())
    found = torch.autograd.grad(loss, (as_input, as_target, as_other))
    return [g.norm(dim=-1) for g in found]


def train_step(types, embedding, body, ids, y, margin):
    h = body(embedding(ids))
    z = h @ embedding.weight.T
    loss = F.cross_entropy(threshold(z, y, margin).flatten(0, -2), y.flatten())
    loss.backward()
    types.observe(h, y, margin)
    return types.step()


def check(norms, expected):
    for found, wanted in zip(
        (norms.context, norms.target, norms.marginalization), expected, strict=True
    ):
        close(found, wanted)


@pytest.mark.parametrize("margin", [float("inf"), 1.0, 0.2])
def test_recorder_of_a_tied_model(margin):
    embedding, body = nn.Embedding(V, D).double(), Body().double()
    optimizer = torch.optim.SGD([*embedding.parameters(), *body.parameters()], lr=0.5)
    steps = []
    with GradientTypes(embedding) as types:
        for _ in range(6):
            ids, y = data(2, 3)
            steps.append(oracle(embedding, body, ids, y, margin))
            optimizer.zero_grad()
            check(train_step(types, embedding, body, ids, y, margin), steps[-1])
            optimizer.step()
            with torch.no_grad():
                embedding(ids)  # evaluation is not recorded
    context, target, other = (torch.stack(x) for x in zip(*steps, strict=True))
    close(types.ratios.ratio_of_averages(), (context + target).mean(0) / other.mean(0))
    assert types.ratios.steps == 6
    check(types.ratios.averages(), (context.mean(0), target.mean(0), other.mean(0)))


def test_types_sum_to_the_gradient_of_a_tied_weight():
    embedding, body = nn.Embedding(V, D).double(), Body().double()
    ids, y = data(2, 3)
    collected = {}
    h = embedding(ids)
    h.register_hook(lambda g: collected.update(context=diagnose.context_gradients(ids, g, V)))
    h = body(h)
    F.cross_entropy((h @ embedding.weight.T).flatten(0, 1), y.flatten()).backward()
    head = diagnose.head_gradients(h.detach(), embedding.weight, y)
    total = collected["context"] + head.target + head.marginalization
    close(total, embedding.weight.grad)


def test_recorder_of_an_untied_model_with_a_bias():
    embedding, body, head = nn.Embedding(V, D), Body(), nn.Linear(D, V)
    ids, y = data(5)
    with GradientTypes(embedding, head) as types:
        h = body(embedding(input=ids))
        F.cross_entropy(head(h), y).backward()
        types.observe(h, y)
        norms = types.step()
    close(norms.context, embedding.weight.grad.norm(dim=-1))
    found = diagnose.head_gradients(h, head.weight, y, bias=head.bias)
    close(found.target + found.marginalization, head.weight.grad)
    check(norms, (norms.context, *found.norms()))
    with GradientTypes(embedding, head.weight) as types:
        F.cross_entropy(head(body(embedding(ids))), y).backward()
        types.observe(h, y, bias=head.bias.detach())
        check(types.step(), (norms.context, norms.target, norms.marginalization))


def test_a_batch_in_parts_is_one_step():
    embedding, body = nn.Embedding(V, D).double(), Body().double()
    ids, y = data(4, 3)
    with GradientTypes(embedding) as types:
        for part in (slice(0, 1), slice(1, 4)):
            h = body(embedding(ids[part]))
            z = h @ embedding.weight.T
            loss = F.cross_entropy(z.flatten(0, 1), y[part].flatten(), reduction="sum") / 12
            types.observe(h, y[part], normalizer=12.0)  # before or after backward
            loss.backward()
        norms = types.step()
    check(norms, oracle(embedding, body, ids, y, float("inf")))


def test_padding_and_scale():
    embedding = nn.Embedding(V, D, padding_idx=2)

    class Scaled(nn.Module):
        weight, padding_idx = embedding.weight, 2

        def forward(self, mask, ids):
            return 3.0 * embedding(ids)

    ids, module = torch.tensor([2, 2, 1]), Scaled()
    with GradientTypes(module, input_scale=3.0) as types:
        h = module(torch.ones(3) > 0, ids).sin()
        h.sum().backward()
        types.observe(h, ids)
        norms = types.step()
    close(norms.context, embedding.weight.grad.norm(dim=-1))
    assert norms.context[2] == 0


def test_a_closed_recorder_leaves_the_model_alone():
    embedding = nn.Embedding(V, D)
    types = GradientTypes(embedding)
    types.close()
    h = embedding(torch.tensor([1]))
    h.sum().backward()
    types.observe(h, torch.tensor([1]))
    with pytest.raises(ArgumentValueError, match="no backward pass"):
        types.step()


def test_recording_never_waits_for_the_device(monkeypatch):
    # on a GPU these checks are asynchronous; on a CPU they read a value
    monkeypatch.setattr(checks, "all_true", lambda *_: None)
    with FakeTensorMode():  # to read a value of a fake tensor is an error
        embedding, ids = nn.Embedding(V, D, padding_idx=0), torch.zeros(5, dtype=torch.long)
        with GradientTypes(embedding) as types:
            h = embedding(ids).sin()
            h.sum().backward()
            types.observe(h, ids, torch.ones(5), softcap=3.0, protect=torch.zeros(V) > 0)
            types.step()
    assert types.ratios.average_of_ratios("replace").shape == (V,)


# --- ratios


def norms(a, b, c):
    return GradientNorms(context=a, target=b, marginalization=c)


def naive(steps, zero_denominator):
    """The average of ratios from the list of all steps."""
    average = torch.stack([c for _, _, c in steps]).mean(0)
    found = []
    for i in range(V):
        ratios = []
        for a, b, c in steps:
            if c[i] > 0:
                ratios.append((a[i] + b[i]) / c[i])
            elif zero_denominator == "replace":
                ratios.append((a[i] + b[i]) / average[i])
        found.append(torch.stack(ratios).mean() if ratios else torch.tensor(torch.nan))
    return torch.stack(found).double()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 8), st.integers(0, 999))
def test_ratios_against_lists(count, seed):
    generator = torch.manual_seed(seed)
    steps, ratios = [], GradientRatios()
    for _ in range(count):
        a, b, c = torch.rand(3, V, dtype=torch.float64, generator=generator)
        c = c * (torch.rand(V, generator=generator) < 0.6)
        c[0] = 1.0
        steps.append((a, b, c))
        ratios.update(norms(a, b, c))
    pull, push = (sum(x) for x in zip(*((a + b, c) for a, b, c in steps), strict=True))
    close(ratios.ratio_of_averages(), pull / push)
    for rule in ("drop", "replace"):
        close(ratios.average_of_ratios(rule), naive(steps, rule), equal_nan=True)
    marginalized = push > 0
    least = ratios.average_of_ratios("replace")[marginalized]
    assert least.isfinite().all()


def test_a_token_that_is_never_marginalized():
    ratios = GradientRatios()
    zero, one = torch.zeros(2), torch.tensor([1.0, 0.0])
    ratios.update(norms(one, one, zero))
    assert ratios.ratio_of_averages().tolist()[0] == torch.inf
    assert ratios.average_of_ratios().isnan().all()
    replaced = ratios.average_of_ratios("replace")
    assert replaced[0] == torch.inf
    assert replaced[1].isnan()


def test_ratios_of_runs():
    ratios, alone = GradientRatios(), GradientRatios()
    for _ in range(3):
        a, b, c = torch.rand(3, 2, V)
        ratios.update(norms(a, b, c))
        alone.update(norms(a[1], b[1], c[1]))
    close(ratios.average_of_ratios()[1], alone.average_of_ratios())
    close(ratios.ratio_of_averages()[1], alone.ratio_of_averages())


# --- bad input


@pytest.mark.usefixtures("unchecked")
def test_bad_ratios():
    ratios = GradientRatios()
    for read in (ratios.ratio_of_averages, ratios.average_of_ratios, ratios.averages):
        with pytest.raises(ArgumentValueError, match=r"^steps: expected at least one"):
            read()
    one = torch.ones(3)
    ratios.update(norms(one, one, one))
    with pytest.raises(ArgumentValueError, match=r"^norms"):
        ratios.update(norms(one[:2], one[:2], one[:2]))
    with pytest.raises(ArgumentValueError, match=r"^zero_denominator"):
        ratios.average_of_ratios("ignore")


@pytest.mark.usefixtures("unchecked")
def test_bad_recorder():
    embedding = nn.Embedding(V, D)
    with pytest.raises(ArgumentTypeError, match=r"^embedding"):
        GradientTypes(nn.ReLU())
    with pytest.raises(ArgumentTypeError, match=r"^head"):
        GradientTypes(embedding, nn.ReLU())
    with pytest.raises(ArgumentValueError, match=rf"^head: expected {V} rows"):
        GradientTypes(embedding, nn.Linear(D, V + 1))
    with pytest.raises(ArgumentValueError, match=r"^embedding: .* scaled by frequency"):
        GradientTypes(nn.Embedding(V, D, scale_grad_by_freq=True))
    with pytest.raises(ArgumentTypeError, match=r"^input_scale"):
        GradientTypes(embedding, input_scale="4")
    with GradientTypes(embedding) as types:
        embedding(torch.tensor([1])).sum().backward()
        with pytest.raises(ArgumentValueError, match=r"no observe"):
            types.step()
    linear = nn.Linear(D, D)
    with GradientTypes(linear), pytest.raises(ArgumentTypeError, match=r"a module called with ids"):
        linear(torch.ones(2, D))
