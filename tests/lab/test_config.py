"""Configurations: they come back from YAML as they were, and no mistake waits for the training."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.config import (
    DataConfig,
    OptimizerConfig,
    RunConfig,
    as_plain,
    merge,
    plan,
    run_config,
)
from elbowroom.lab.loss_config import LossConfig, MarginConfig, Rows, VariantConfig
from elbowroom.lab.rival_options import takes_counts
from elbowroom.lab.strict import read_yaml, write_yaml

RIVALS = {
    "acsl": {"xi": 0.6, "form": "softmax"},
    "adversarial": {"alpha": 0.01, "detach_weight_norm": False},
    "class_balanced": {"beta": 0.9},
    "contrastive_weight_tying": {"deduplicate": True},
    "entmax15": {},
    "equalization": {"threshold": 0.01, "gamma": 0.5},
    "focal": {"gamma": 1},
    "ldam": {"max_margin": 0.2, "s": 1, "normalize": False},
    "logit_adjusted": {"tau": 0.5},
    "mile": {"normalize": False},
    "sampled_softmax": {"samples": 8, "proposal": "frequency"},
    "seesaw": {"p": 1},
    "sparsemax": {},
}
FULL = {
    "name": "all-of-it_1.0+x",
    "init_seed": 2**63 - 1,
    "data_seed": -(2**63),
    "data": {"sampling": "fixed", "shares": [0.9, 0.1], "tokenizer": "bytes"},
    "model": {"layers": 1, "width": 16, "mlp": "swiglu", "tied": False},
    "zero_rows": {"languages": ["lr"]},
    "loss": {
        "margin": {"start": "1e-1", "end_top_p": 0.999, "shape": "geometric", "hold": 0.1},
        "variant": {"name": "rare_only", "rows": {"quantile": 0.2}},
        "protect": {"language_share": 0.05},
        "protect_until": 0.5,
        "z_loss": "1e-4",
        "penalty": "cosreg",
    },
    "optimizer": {"name": "row_adamw", "lr": "1e-3", "betas": [0.9, 0.95], "schedule": "wsd"},
    "training": {"steps": 10, "batch": 6, "accumulate": 3, "checkpoint_every": 4, "compile": False},
    "evaluation": {"windows": 4, "temperatures": 2, "bins": 0},
}


def back(config, path):
    path.write_text(write_yaml(as_plain(config)), encoding="utf-8")
    return run_config(read_yaml(path))


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "all"])
def test_what_is_written_comes_back(values, tmp_path):
    config = run_config(values)
    assert back(config, tmp_path / "config.yaml") == config
    assert back(replace(config, init_seed=7), tmp_path / "config.yaml") != config


@pytest.mark.parametrize("name", RIVALS)
def test_rivals_come_back(name, tmp_path):
    config = run_config({"loss": {"name": name, "options": RIVALS[name]}})
    assert back(config, tmp_path / "config.yaml") == config


def test_shorthands():
    found = run_config({"loss": {"margin": "5e-1", "variant": "softminus"}}).loss
    assert found.margin == MarginConfig(start=0.5)
    assert found.variant == VariantConfig(name="softminus")
    assert run_config({"loss": {"margin": math.inf}}).loss == LossConfig()
    assert MarginConfig.shorthand(2) == MarginConfig(start=2.0)
    assert VariantConfig.shorthand("leaky").name == "leaky"


def test_rows():
    assert not Rows()
    assert Rows(at_most=0.0)
    assert Rows(languages=("lr",)).criteria()["languages"] == ("lr",)


BAD = [
    ({"loss": {"margn": 1}}, "loss.margn: .*did you mean 'margin'"),
    ({"loss": {"margin": {"strat": 1}}}, "loss.margin.strat: .*did you mean 'start'"),
    ({"loss": {"margin": "wide"}}, "loss.margin.start: expected a number, got 'wide'"),
    ({"loss": {"margin": -1}}, "loss.margin.start: expected a number, at least 0, got -1"),
    ({"loss": {"margin": {"end": 2}}}, "loss.margin.start: expected a finite number where"),
    (
        {"loss": {"margin": {"start": 1, "end": 2, "end_top_p": 0.9}}},
        "loss.margin.end_top_p: expected either end or end_top_p, got both",
    ),
    ({"loss": {"margin": {"start": 1, "end_top_p": 1.0}}}, "loss.margin.end_top_p: .* below 1"),
    ({"loss": {"margin": {"start": 1, "end": -1}}}, "loss.margin.end: .* at least 0"),
    (
        {"loss": {"margin": {"start": 0, "end": 1, "shape": "geometric"}}},
        "loss.margin.start: expected a number above 0",
    ),
    (
        {"loss": {"margin": {"start": 1, "end": 2, "hold": 0.6, "release": 0.5}}},
        "loss.margin.release: .* at least 0.6",
    ),
    ({"loss": {"variant": "soft"}}, "loss.variant.name: expected one of 'none', 'softminus'"),
    ({"loss": {"variant": {"name": "softminus", "c": 0}}}, "loss.variant.c: .*above 0"),
    ({"loss": {"variant": {"weight": 2}}}, "loss.variant.weight: .*at most 1"),
    ({"loss": {"variant": "rare_only"}}, "loss.variant.rows: expected the rows that rare_only"),
    ({"loss": {"variant": "softminus", "margin": 0}}, "loss.margin: expected margins above 0"),
    (
        {"loss": {"variant": "softminus", "margin": {"start": 1, "end": 0}}},
        "loss.margin: expected margins above 0",
    ),
    (
        {"loss": {"protect": {"share": 0.1, "languages": ["lr"]}}},
        "loss.protect.share: expected at most one criterion, got languages and share",
    ),
    ({"zero_rows": {"quantile": 1.5}}, "zero_rows.quantile: .*at most 1"),
    ({"zero_rows": {"at_most": -1}}, "zero_rows.at_most: .*at least 0"),
    ({"loss": {"protect_until": 2}}, "loss.protect_until: .*at most 1"),
    ({"loss": {"logit_scale": 0}}, "loss.logit_scale: .*above 0"),
    ({"loss": {"label_smoothing": 1}}, "loss.label_smoothing: .*below 1"),
    ({"loss": {"z_loss": -1}}, "loss.z_loss: .*at least 0"),
    ({"loss": {"penalty_weight": -1}}, "loss.penalty_weight: .*at least 0"),
    ({"loss": {"options": {"gamma": 1}}}, "loss.options: expected none for the thresholded loss"),
    ({"loss": {"count_steps": 3}}, "loss.count_steps: expected none for the thresholded loss"),
    ({"loss": {"count_steps": 0}}, "loss.count_steps: .*at least 1"),
    (
        {"loss": {"name": "focal", "margin": 1}},
        "loss.margin: expected none for focal",
    ),
    ({"loss": {"name": "focal", "options": {"gama": 1}}}, "loss.options.gama: .*'gamma'"),
    ({"loss": {"name": "entmax15", "options": {"a": 1}}}, "loss.options.a: .*none for entmax15"),
    (
        {"loss": {"name": "focal", "options": {"seed": 1}}},
        "loss.options.seed: .*one of gamma",
    ),
    ({"loss": {"name": "focal", "options": {"gamma": "a"}}}, "loss.options.gamma: .*a number"),
    ({"loss": {"name": "focal", "count_steps": 3}}, "loss.count_steps: expected none: focal takes"),
    ({"loss": {"name": "equalization"}}, "loss.options: expected threshold, which equalization"),
    ({"loss": {"name": "agg"}}, "loss.count_steps: expected a number of steps: agg counts"),
    (
        {"loss": {"name": "sampled_softmax", "options": {"samples": 1.5}}},
        "loss.options.samples: expected an integer",
    ),
    ({"optimizer": {"lr": -1}}, "optimizer.lr: .*at least 0"),
    ({"optimizer": {"lr": 1e31}}, "optimizer.lr: .*at most 1e.30"),
    ({"optimizer": {"lr": 1e-5}}, "optimizer.min_lr: .*at most 1e-05.*; lower it too"),
    ({"optimizer": {"warmup": -1}}, "optimizer.warmup: .*at least 0"),
    ({"optimizer": {"decay": 2}}, "optimizer.decay: .*at most 1"),
    ({"optimizer": {"betas": [0.9, 1]}}, "optimizer.betas: .*below 1"),
    ({"optimizer": {"betas": [0.9]}}, "optimizer.betas: expected 2 values"),
    ({"optimizer": {"eps": 0}}, "optimizer.eps: .*above 0"),
    ({"optimizer": {"weight_decay": -1}}, "optimizer.weight_decay: .*at least 0"),
    ({"optimizer": {"clip": -1}}, "optimizer.clip: .*at least 0"),
    ({"data": {"vocab_size": 0}}, "data.vocab_size: .*at least 1"),
    ({"data": {"validation": 1}}, "data.validation: .*below 1"),
    ({"data": {"tau": 0}}, "data.tau: .*above 0"),
    ({"data": {"epochs": 0}}, "data.epochs: .*above 0"),
    ({"data": {"shares": [-1]}}, "data.shares: .*at least 0"),
    ({"data": {"sampling": "fixed"}}, "data.shares: expected a share a language"),
    ({"data": {"sampling": "fixed", "shares": [0, 0]}}, "data.shares: expected a share"),
    ({"model": {"width": 10, "heads": 3}}, "model.width: expected a multiple of heads"),
    ({"training": {"steps": 0}}, "training.steps: .*at least 1"),
    ({"training": {"batch": 4, "accumulate": 3}}, r"training.accumulate: .*the batch \(4\)"),
    ({"training": {"checkpoint_every": 0}}, "training.checkpoint_every: .*at least 1"),
    ({"training": {"checkpoint_minutes": 0}}, "training.checkpoint_minutes: .*above 0"),
    ({"training": {"compile": "maybe"}}, "training.compile: expected true or false"),
    ({"training": {"precision": "fp16"}}, "training.precision: expected one of 'float32'"),
    ({"evaluation": {"windows": 1}}, "evaluation.windows: .*at least 2"),
    ({"evaluation": {"temperatures": 1}}, "evaluation.temperatures: .*at least 2"),
    ({"evaluation": {"bins": -1}}, "evaluation.bins: .*at least 0"),
    ({"name": ""}, "name: expected letters, digits"),
    ({"name": "a/b"}, "name: expected letters, digits, .*, got a/b"),
    ({"init_seed": 2**63}, "init_seed: expected an integer of 64 bits"),
    ({"data_seed": -(2**63) - 1}, "data_seed: expected an integer of 64 bits"),
    ({"init_seed": True}, "init_seed: expected an integer, got True"),
]


@pytest.mark.parametrize(("values", "message"), BAD, ids=[m.partition(":")[0] for _, m in BAD])
@pytest.mark.usefixtures("unchecked")
def test_mistakes_are_named_with_their_path(values, message):
    with pytest.raises((ArgumentValueError, ArgumentTypeError), match=f"^{message}"):
        run_config(values)


def test_a_constant_rate_needs_no_smallest_one():
    assert OptimizerConfig(lr=1e-5, schedule="constant").lr == 1e-5


def test_parts_name_their_arguments_where_they_stand_alone():
    with pytest.raises(ArgumentValueError, match=r"^start: "):
        MarginConfig(start=-1.0)
    with pytest.raises(ArgumentValueError, match=r"^validation: "):
        DataConfig(validation=2.0)


def test_which_losses_take_counts():
    assert takes_counts("sampled_softmax", {"proposal": "frequency"})
    assert not takes_counts("sampled_softmax", {"samples": 3})
    assert takes_counts("agg", {})
    assert not takes_counts("focal", {})


# Plans


def folders(values):
    return [run.folder for run in plan(values)]


def test_a_plain_configuration_is_one_run():
    assert plan({"name": "x", "init_seed": 3}) == [RunConfig(name="x", init_seed=3)]


def test_plans():
    base = {"training": {"steps": 7}, "loss": {"margin": {"start": 1.0, "end_top_p": 0.999}}}
    runs = [
        {"name": "ours"},
        {"name": "fixed", "loss": {"margin": 0.3}},
        {"name": "ce", "loss": {"margin": {"start": math.inf, "end_top_p": None}}},
    ]
    found = plan({"seeds": 2, "base": base, "runs": runs})
    assert [r.folder for r in found] == [
        f"{name}-i{s}-d{s}" for name in ("ours", "fixed", "ce") for s in (0, 1)
    ]
    assert {r.training.steps for r in found} == {7}
    assert [r.loss.margin.start for r in found[::2]] == [1.0, 0.3, math.inf]
    assert found[0].loss.margin.end_top_p == 0.999
    assert found[2].loss.margin == MarginConfig(start=0.3)
    assert found[4].loss.margin == MarginConfig()
    assert folders({"seeds": [5, -1]}) == ["run-i5-d5", "run-i-1-d-1"]
    assert folders({"base": {"name": "x"}, "runs": None, "seeds": None}) == ["x-i0-d0"]


def test_without_seeds_runs_keep_their_own():
    runs = [{"name": "a", "init_seed": 3}, {"name": "a", "init_seed": 3, "data_seed": 4}]
    assert folders({"runs": runs}) == ["a-i3-d0", "a-i3-d4"]
    with pytest.raises(ArgumentValueError, match="seeds: expected runs without seeds"):
        plan({"seeds": 2, "runs": runs})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seeds": 2, "name": "x"}, "name: expected base, runs and seeds.*put it into base"),
        ({"seeds": 0}, "seeds: expected an integer, at least 1, got 0; or a list of seeds"),
        ({"seeds": True}, "seeds: expected an integer, got True"),
        ({"seeds": "3"}, "seeds: expected an integer, got '3'"),
        ({"seeds": [1, 0.5]}, "seeds: expected an integer, got 0.5"),
        ({"seeds": []}, "seeds: expected an integer"),
        ({"seeds": [1, 1]}, "name: expected another for each run, got run-i1-d1"),
        ({"runs": []}, r"runs: expected a list of runs, got \[\]"),
        ({"runs": {"name": "x"}}, "runs: expected a list of runs"),
        ({"runs": ["x"]}, r"runs\[0\]: expected a mapping of settings, got 'x'"),
        ({"base": 3}, "base: expected a mapping of settings, got 3"),
        ({"runs": [{}, {"loss": {"margin": -1}}]}, "loss.margin.start: "),
        ({"runs": [{"name": "x"}, {"name": "x"}]}, "name: expected another for each run, got x-i0"),
    ],
)
def test_plans_that_will_not_do(values, message):
    with pytest.raises((ArgumentValueError, ArgumentTypeError), match=f"^{message}"):
        plan(values)


def test_merging_goes_into_dataclasses_too():
    data = DataConfig(source="udhr:eng", tokenizer="bytes")
    found = run_config(merge({"data": data}, {"data": {"tokenizer": "characters"}}))
    assert found.data == DataConfig(source="udhr:eng", tokenizer="characters")
    base = {"a": {"b": 1, "c": 2}}
    assert merge(base, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}
    assert base == {"a": {"b": 1, "c": 2}}
