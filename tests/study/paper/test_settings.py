from __future__ import annotations

import dataclasses

import torch

from elbowroom.lab.config import RunConfig
from elbowroom.lab.population import Population, population_key
from elbowroom.lab.trainer import group
from elbowroom.study.paper import METHODS, base_of, config_of
from elbowroom.study.paper.families import FAMILIES, REFERENCES, SETTING_OF, SETTINGS
from elbowroom.study.paper.settings import RATES
from tests.lab.toy import BASE, corpus

SMALL = {
    "model": BASE["model"],
    "training": {"steps": 4, "batch": 2, "precision": "float32"},
    "optimizer": {"warmup": 1},
}


def test_every_family_has_as_many_settings_with_words_of_their_own() -> None:
    for name, family in FAMILIES.items():
        assert family.name == name
        assert len(family.settings) == SETTINGS
        assert len({setting.method for setting in family.settings}) == SETTINGS
        assert len({setting.words for setting in family.settings}) == SETTINGS
        assert all(setting.method in METHODS for setting in family.settings)
    assert len({family.label for family in FAMILIES.values()}) == len(FAMILIES)
    assert set(REFERENCES) < set(FAMILIES)


def test_what_others_propose_is_all_there() -> None:
    """By what it changes: each loss, penalty, optimizer, bias and sampling that the lab has."""
    runs = [config_of(name) for name in SETTING_OF]
    losses = {run.loss.name for run in runs} | {"contrastive_weight_tying"}
    assert losses == {
        *("thresholded", "acsl", "adversarial", "agg", "class_balanced", "entmax15", "mile"),
        *("contrastive_weight_tying", "equalization", "focal", "ldam", "logit_adjusted"),
        *("sampled_softmax", "seesaw", "sparsemax"),
    }
    assert {run.loss.penalty for run in runs} == {"none", "cosreg", "laplacian", "centering"}
    assert any(run.optimizer.center for run in runs)
    assert any(run.optimizer.name == "coupled_adamw" for run in runs)
    assert any(run.model.unigram_bias for run in runs)
    assert {run.data.sampling for run in runs} == {"natural", "temperature", "unimax"}


def test_settings_that_the_paper_has_are_its_runs() -> None:
    shared = [s.method for f in FAMILIES.values() for s in f.settings if s.method not in SETTING_OF]
    assert {"ce-tied", "margin-1", "alpha-.25", "agg-.02", "cosreg", "cwt"} < set(shared)
    assert all(METHODS[method].rate == 1.0 for method in shared)


def test_a_learning_rate_is_a_multiple_of_the_base_s_whatever_that_is() -> None:
    for base in (base_of(), base_of(quick=True)):
        usual = config_of("ce-tied", base).optimizer
        for rate, setting in zip(RATES, FAMILIES["entmax"].settings, strict=True):
            found = config_of(setting.method, base).optimizer
            assert (found.lr, found.min_lr) == (rate * usual.lr, rate * usual.min_lr)
            assert found == dataclasses.replace(usual, lr=found.lr, min_lr=found.min_lr)


def test_the_default_is_annealed_to_the_tail_of_the_vocabulary() -> None:
    margin = config_of("margin-default").loss.margin
    assert (margin.start, margin.end_top_p, margin.shape) == (1.0, 0.999, "linear")
    assert not config_of("untied-default").model.tied
    twins = config_of("twins-default-until.9")
    assert twins.zero_rows.languages == twins.loss.protect.languages == ("lr",)
    assert (twins.loss.protect_until, twins.loss.margin.end_top_p) == (0.9, 0.999)


def test_every_setting_trains() -> None:
    """Two steps of each, all together as the lab trains them; nothing is stopped."""
    base = base_of(change=SMALL)
    runs = [config_of(name, base, seed=1000) for name in SETTING_OF]
    runs = [with_size(run, corpus().vocab_size) for run in runs]
    for members in group(runs):
        population = Population(members, corpus(), torch.device("cpu"))
        before = population.model.head.detach().clone()
        population.advance(2)
        assert bool(population.alive.all()), [run.name for run in members]
        moved = (population.model.head - before).flatten(1).abs().amax(-1)
        assert bool((moved > 0).all()), moved
    assert len({population_key(run) for run in runs}) == len(group(runs))


def with_size(run: RunConfig, vocab_size: int) -> RunConfig:
    return dataclasses.replace(run, model=dataclasses.replace(run.model, vocab_size=vocab_size))
