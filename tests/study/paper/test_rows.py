from __future__ import annotations

import math

import pytest

from elbowroom.errors import ArgumentValueError, ElbowroomError
from elbowroom.study.paper import METHODS, base_of, config_of, runs_of
from elbowroom.study.paper.layout import SE, SKIPPED, TABLES, UNTIED_SE
from elbowroom.study.paper.rows import stretches


def test_every_method_is_a_valid_run_with_a_name_of_its_own() -> None:
    for quick in (False, True):
        runs = runs_of(METHODS, [0, 1], base_of(quick=quick))
        assert len({run.folder for run in runs}) == len(runs) == 2 * len(METHODS)
    assert [name for name, method in METHODS.items() if method.name != name] == []
    different = {repr(config_of(name)).replace(f"name='{name}'", "") for name in METHODS}
    assert len(different) == len(METHODS)


def test_the_setting_is_the_papers() -> None:
    run = config_of("ce-tied")
    assert (run.model.layers, run.model.heads, run.model.width, run.model.context) == (
        4,
        4,
        128,
        64,
    )
    assert run.model.tied
    assert (run.training.steps, run.training.batch, run.optimizer.warmup) == (8001, 12, 100)
    assert (run.optimizer.lr, run.optimizer.min_lr, run.optimizer.clip) == (1e-3, 1e-4, 1.0)
    assert (run.optimizer.betas, run.optimizer.weight_decay) == ((0.9, 0.99), 0.1)
    assert run.loss.margin.start == math.inf
    assert run.data.source == "shakespeare"
    assert run.evaluation.windows is None
    assert run.evaluation.temperatures == 200


@pytest.mark.parametrize(
    ("name", "margin", "scale", "norms"),
    [
        ("margin-8", 8.0, 1.0, None),
        ("margin-.6", 0.6, 1.0, None),
        ("margin-0", 0.0, 1.0, None),
        ("margin-1-T.46", 1.0, 0.46, None),
        ("margin-1-T.44", 1.0, 0.44, None),
        ("alpha-1", 1.0, 1.0, "both"),
        ("alpha-.5", 0.5, 1.0, "both"),
        ("alpha-.25", 0.25, 1.0, "both"),
        ("alpha-.0625", 0.0625, 1.0, "both"),
    ],
)
def test_margins(name: str, margin: float, scale: float, norms: str | None) -> None:
    loss = config_of(name).loss
    assert (loss.margin.start, loss.logit_scale, loss.margin.norms) == (margin, scale, norms)
    assert loss.final_scale == 1.0  # the authors judge bare logits


def test_what_others_propose() -> None:
    agg = config_of("agg-.2").loss
    assert (agg.name, agg.options, agg.count_steps) == ("agg", {"alpha": 0.2}, 1600)
    assert config_of("adversarial").loss.options == {"alpha": 0.005}
    assert config_of("cosreg").loss.penalty == "cosreg"
    assert config_of("cwt").loss.name == "contrastive_weight_tying"
    assert config_of("cwt").training.keep.by == "objective"


def test_variants_untied_and_rows_that_are_skipped() -> None:
    dt = config_of("softminus-dt-1-c5").loss
    assert (dt.margin.start, dt.variant.c, dt.variant.detach_threshold) == (1.0, 5.0, True)
    assert not config_of("softminus-2").loss.variant.detach_threshold
    assert config_of("detached-2").loss.variant.name == "detached_below"
    assert not config_of("untied-skipped-1").model.tied
    assert config_of("untied-skipped-1").optimizer.name == "row_adamw"
    assert config_of("skipped-.6").loss == config_of("margin-.6").loss
    twins = config_of("twins-.3-16")
    assert twins.zero_rows.languages == twins.loss.protect.languages == ("lr",)
    assert (twins.loss.protect_until, twins.loss.margin.end) == (0.5, 16.0)


def test_the_monolingual_model_sees_the_rare_language_only() -> None:
    run = config_of("monolingual")
    assert (run.training.steps, run.optimizer.warmup) == (160, 2)
    assert (run.data.sampling, run.data.shares) == ("fixed", (0.0, 1.0))
    assert run.training.keep.every == 5  # as in the authors' run
    assert config_of("monolingual", base_of(quick=True)).training.steps == 9


def test_separated_embeddings_show_plain_runs_with_a_note() -> None:
    for part in TABLES:
        for row in part.rows:
            if "SE" in row.label:
                assert row.note.startswith((SE, UNTIED_SE))
                assert config_of(row.method).optimizer.name == "adamw"
            assert (row.note == SKIPPED) == (config_of(row.method).optimizer.name == "row_adamw")


def test_mistakes_are_named() -> None:
    with pytest.raises(ArgumentValueError, match="method: expected 'ce-tied' or"):
        config_of("margin-3")
    for change, name in (
        ({"init_seed": 3}, "init_seed"),
        ({"loss": {"margin": 2}}, "loss"),
        ({"model": {"tied": False}}, "model.tied"),
        ({"optimizer": {"name": "row_adamw"}}, "optimizer.name"),
        ({"training": {"keep": "last"}}, "training.keep"),
        ({"optimizer": {"center": True}}, "optimizer.center"),
        ({"data": {"tau": 2.0}}, "data.tau"),
    ):
        with pytest.raises(ArgumentValueError, match=f"^{name}: expected what each row has"):
            base_of(change=change)
    assert base_of(change={"model": {"layers": 3}, "optimizer": 3})["model"]["layers"] == 3
    with pytest.raises(ElbowroomError, match="heads"):
        runs_of(["ce-tied"], [0], base_of(change={"model": {"heads": 3}}))


def test_stretches_are_whole_seeds() -> None:
    runs = runs_of(["ce-tied", "margin-1", "margin-2"], range(5), base_of())
    cut = [[run.folder for run in part] for part in stretches(runs, 6)]
    assert [len(part) for part in cut] == [6, 6, 3]
    assert cut[0][:2] == ["ce-tied-i0-d0", "ce-tied-i1-d1"]
    assert [len(part) for part in stretches(runs, 1)] == [3] * 5
    assert list(stretches([], 5)) == []
