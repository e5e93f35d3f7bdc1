"""Gradients by type while training: against autograd in a plain loop, and resumed to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.lab.evaluation import Judge
from elbowroom.lab.population import Population
from tests.lab.observed import Clock, after, differences
from tests.lab.toy import corpus, fit, run, same_states, weights

CPU = torch.device("cpu")
EVERY = {"gradients_every": 2, "steps": 7, "log_every": 3, "eval_every": 6, "checkpoint_every": 3}
LOSSES = {
    "ce": {},
    "margin": {"margin": 0.2},
    "scaled": {"margin": 1, "logit_scale": 2.0},
    "annealed": {"margin": {"start": 0.1, "end": 3}},
    "protected": {"margin": 2, "protect": {"languages": ["lr"]}, "protect_until": 0.5},
}
MODELS = {
    "tied": {},
    "untied": {"model": {"tied": False}},
    "bias in parts": {"model": {"unigram_bias": True}, "training": {"accumulate": 2}},
}


def configs(training=EVERY, **change):
    return [
        run(name=name.replace(" ", "-"), loss=loss, init_seed=i, **change | {"training": training})
        for i, (name, loss) in enumerate(LOSSES.items())
    ]


def margin_at(loss, progress):
    margin = loss.get("margin", float("inf"))
    if isinstance(margin, dict):
        return margin["start"] + progress * (margin["end"] - margin["start"])
    return margin


def by_hand(population, r, progress):
    """Return the norms of one run's coming step: the head exists twice, the input once more."""
    model, config = population.model.select([r]), population.runs[r]
    loss = LOSSES[config.name]
    batch = population.batches.draw(population.step)
    ids, target = batch.ids[[r]], batch.target[r].flatten()
    head = model.head.detach()[0]
    as_target, as_other = head.clone().requires_grad_(), head.clone().requires_grad_()
    hidden = model(ids)[0].flatten(0, 1)
    own = F.one_hot(target, len(head)).bool()
    z = torch.where(own, hidden @ as_target.T, hidden @ as_other.T)
    z = z + (0 if model.bias is None else model.bias.detach()[0])
    z = z * loss.get("logit_scale", 1.0)
    masked = z < z.gather(-1, target[:, None]) - margin_at(loss, progress)
    if "protect" in loss and progress < loss["protect_until"]:
        rare = torch.as_tensor(population.corpus.group_of_token) == 1
        masked |= rare & ~rare[target][:, None]
    z = z.masked_fill(masked & ~own, -torch.inf)
    found = torch.autograd.grad(F.cross_entropy(z, target), (model.embedding, as_target, as_other))
    return [x.reshape(head.shape).norm(dim=-1).double() for x in found]


@pytest.mark.parametrize("change", MODELS.values(), ids=MODELS)
def test_against_autograd_in_a_plain_loop(change):
    training = {**EVERY, **change.get("training", {})}
    runs = configs(training, **{k: v for k, v in change.items() if k != "training"})
    plain = [replace(c, training=run(training=without(training)).training) for c in runs]
    measured, unmeasured = (Population(x, corpus(), CPU) for x in (runs, plain))
    steps = [[] for _ in runs]
    for step in range(7):
        if step % 2 == 0:
            for r, listed in enumerate(steps):
                listed.append(by_hand(unmeasured, r, step / 7))
        unmeasured.advance(1)
    measured.advance(7)
    ratios = measured.gradients.ratios
    assert ratios.steps == 4
    for r, listed in enumerate(steps):
        assert same_states(measured.model_state(r), unmeasured.model_state(r))
        g1, g2, g3 = (torch.stack(x) for x in zip(*listed, strict=True))
        expected = (g1 + g2).mean(0) / g3.mean(0)
        close = {"rtol": 1e-4, "atol": 1e-7, "equal_nan": True}
        torch.testing.assert_close(ratios.ratio_of_averages()[r], expected, **close)
        each = ((g1 + g2) / g3).masked_fill(g3 == 0, torch.nan)
        found = ratios.average_of_ratios()[r]
        torch.testing.assert_close(found, each.nanmean(0), **close)
        averages = ratios.averages()
        for name, x in (("context", g1), ("target", g2), ("marginalization", g3)):
            torch.testing.assert_close(getattr(averages, name)[r], x.mean(0), **close)


def without(training):
    return {**training, "gradients_every": None}


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def kept(outcome):
    return [(folder.path / "gradients.safetensors").read_bytes() for folder in outcome.folders]


@pytest.mark.usefixtures("unchecked")
def test_a_resumed_run_goes_on_to_the_same_bits(tmp_path, clock):
    whole = fit(configs(), tmp_path / "whole")
    for steps in (1, 3, 2):
        assert fit(configs(), tmp_path / "parts", resume=True, max_minutes=after(steps)).stopped
    found = fit(configs(), tmp_path / "parts", resume=True)
    assert differences(found, whole) == []
    assert kept(found) == kept(whole)
    assert [folder.gradients.steps for folder in found.folders] == [4] * len(LOSSES)


@pytest.mark.usefixtures("unchecked")
def test_cut_off_in_the_evaluation(tmp_path, monkeypatch):
    whole = fit(configs()[:2], tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(Judge, "full", lambda self, progress: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit(configs()[:2], tmp_path / "cut")
    assert kept(fit(configs()[:2], tmp_path / "cut", resume=True)) == kept(whole)


def test_nothing_where_it_is_not_asked_for(tmp_path):
    (plain,) = fit([run(training=without(EVERY))], tmp_path / "plain").folders
    (measured,) = fit([run(training=EVERY)], tmp_path / "measured").folders
    assert plain.gradients is None
    assert not (plain.path / "gradients.safetensors").exists()
    assert weights(plain) == weights(measured)
    (measured.path / "gradients.safetensors").write_bytes(b"half")
    with pytest.raises(FileError, match="no whole sums there"):
        _ = measured.gradients


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": {"name": "seesaw"}}, "thresholded cross-entropy alone, got another loss.name"),
        ({"loss": {"margin": 1, "variant": "leaky"}}, "got another loss.variant"),
        ({"loss": {"penalty": "cosreg"}}, "got another loss.penalty"),
        ({"training": {"gradients_every": 1, "parallel": "fsdp"}}, "got training.parallel fsdp"),
        ({"training": {"gradients_every": 0}}, "gradients_every: expected an integer, at least 1"),
    ],
)
def test_what_has_no_closed_form_is_refused(change, words):
    with pytest.raises(ArgumentValueError, match=words):
        run(**{"training": {"gradients_every": 1}, **change})
