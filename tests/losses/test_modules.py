"""The modules are the functions, with options fixed and progress in a buffer."""

from __future__ import annotations

import copy

import pytest
import torch

import elbowroom as er
from elbowroom.errors import ArgumentTypeError
from elbowroom.losses.variants import RareOnly, Softminus
from elbowroom.margins import Annealed, ByNorms
from tests.losses.problems import PROTECT, RARE, N, V, linear_problem, logits_problem

OPTIONS = [
    {},
    {"logit_scale": 0.5, "reduction": "sum", "z_loss": 0.1, "label_smoothing": 0.1},
    {"protect": PROTECT, "variant": RareOnly(RARE), "ignore_index": 0},
    {"token_weights": torch.rand(N), "normalizer": torch.tensor(3.0), "variant": Softminus()},
]
LINEAR = [{"softcap": 3.0, "shift": 1, "backend": "reference"}, {"reduction": "none"}]


def same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize("margin", [1.0, 2, torch.tensor(0.5), torch.rand(N)])
@pytest.mark.parametrize("options", OPTIONS)
def test_the_module_is_the_function(options, margin):
    z, target = logits_problem()
    target = target.clamp(min=0)
    expected = er.thresholded_cross_entropy(z, target, margin, **options)
    same(er.ThresholdedCrossEntropy(margin, **options)(z, target), expected)


@pytest.mark.parametrize("margin", [1.0, torch.tensor(0.5), ByNorms(0.3)])
@pytest.mark.parametrize("options", OPTIONS + LINEAR)
def test_the_linear_module_is_the_function(options, margin):
    hidden, weight, bias, target = linear_problem()
    target = target.clamp(min=0)
    loss = er.LinearThresholdedCrossEntropy(margin, **options)
    for b in (None, bias):
        expected = er.linear_thresholded_cross_entropy(
            hidden, weight, target, margin, bias=b, **options
        )
        same(loss(hidden, weight, target, b), expected)


def test_statistics():
    hidden, weight, bias, target = linear_problem()
    loss, stats = er.LinearThresholdedCrossEntropy(1.0, stats=True)(hidden, weight, target, bias)
    expected = er.linear_thresholded_cross_entropy(
        hidden, weight, target, 1.0, bias=bias, stats=True
    )
    same((loss, stats.touched, stats.rank), (expected[0], expected[1].touched, expected[1].rank))
    z, target = logits_problem()
    loss, stats = er.ThresholdedCrossEntropy(1.0, stats=True)(z, target)
    assert stats.kept.shape == (N,)


@pytest.mark.parametrize("progress", [0.0, 0.25, 1.0])
def test_progress_is_set_from_outside(progress):
    z, target = logits_problem()
    loss = er.ThresholdedCrossEntropy(Annealed(0.5, 2.5))
    loss.progress.fill_(progress)
    same(loss(z, target), er.thresholded_cross_entropy(z, target, 0.5 + 2 * progress))


def test_a_loss_adds_nothing_to_a_checkpoint_and_has_no_parameters():
    loss = er.ThresholdedCrossEntropy(
        torch.tensor(1.0), protect=PROTECT, variant=RareOnly(RARE), token_weights=torch.rand(N)
    )
    assert not loss.state_dict()
    assert not list(loss.parameters())
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), loss)
    model.load_state_dict(torch.nn.Sequential(torch.nn.Linear(2, 2)).state_dict())


def test_tensors_move_with_the_module():
    loss = er.LinearThresholdedCrossEntropy(
        torch.tensor(1.0), protect=PROTECT, variant=RareOnly(RARE)
    ).to("meta")
    names = {name for name, x in loss.named_buffers() if x.is_meta}
    assert names == {"margin", "protect", "rows", "progress"}
    margin, options = loss.at_this_moment()
    assert margin.is_meta
    assert options["variant"].rows.is_meta
    assert options["protect"].is_meta


def test_double_and_half_leave_masks_alone():
    loss = er.ThresholdedCrossEntropy(torch.tensor(1.0), protect=PROTECT).double()
    assert loss.margin.dtype == torch.float64
    assert loss.protect.dtype == torch.bool
    z, target = logits_problem()
    same(loss(z, target), er.thresholded_cross_entropy(z, target, 1.0, protect=PROTECT))


def test_a_copy_has_a_progress_of_its_own():
    loss = er.ThresholdedCrossEntropy(Annealed(0.5, 2.5), protect=PROTECT)
    other = copy.deepcopy(loss)
    other.progress.fill_(1.0)
    assert loss.progress.item() == 0.0
    z, target = logits_problem()
    same(other(z, target), er.thresholded_cross_entropy(z, target, 2.5, protect=PROTECT))


def test_it_shows_what_it_is():
    shown = repr(er.ThresholdedCrossEntropy(2.0, z_loss=0.1, protect=torch.zeros(V) > 0))
    assert shown == "ThresholdedCrossEntropy(margin=2.0, z_loss=0.1)"
    shown = repr(er.LinearThresholdedCrossEntropy(torch.tensor(0.5), shift=1))
    assert shown == "LinearThresholdedCrossEntropy(margin=0.5, shift=1)"
    assert "Annealed(start=1.0" in repr(er.ThresholdedCrossEntropy(Annealed(1.0, 2.0)))


@pytest.mark.usefixtures("unchecked")
def test_unknown_options_are_refused_when_it_is_made():
    with pytest.raises(ArgumentTypeError, match=r"^smoothing: .*label_smoothing.* an unknown"):
        er.LinearThresholdedCrossEntropy(1.0, smoothing=0.1)
    with pytest.raises(ArgumentTypeError, match=r"^shift: expected one of the options"):
        er.ThresholdedCrossEntropy(1.0, shift=1)
