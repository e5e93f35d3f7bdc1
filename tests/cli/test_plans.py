from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from elbowroom.cli.main import UsageError, apart, fields
from elbowroom.cli.plans import dumped, repeat, with_fields
from elbowroom.errors import ArgumentValueError
from elbowroom.lab.config import RunConfig, as_plain, plan, run_config

ANNEALED = {"margin": {"start": 1.0, "end_top_p": 0.999}}
FOCAL = {"name": "focal", "options": {"gamma": 1.5}}


@pytest.mark.parametrize(
    "runs",
    [
        [{}],
        [{"name": "a"}, {"name": "b"}],
        [{"name": "a"}, {"name": "b", "loss": ANNEALED, "model": {"tied": False}}],
        [{"name": "a", "loss": FOCAL}, {"name": "b"}, {"name": "c", "loss": {**FOCAL}}],
        [{"init_seed": seed, "data_seed": 1, "optimizer": {"lr": 0.1 / seed}} for seed in (1, 2)],
        [{"name": "a", "data": {"sampling": "fixed", "shares": [0.5, 0.5]}}, {"name": "b"}],
    ],
)
def test_what_is_dumped_is_read_as_the_same_runs(runs: list[dict[str, Any]]) -> None:
    made = [run_config(run) for run in runs]
    assert plan(yaml.safe_load(dumped(made))) == made


def test_flags_change_every_run_of_a_plan() -> None:
    first = {"loss": {"margin": {"start": 1, "shape": "geometric"}}}
    values = {"base": {"loss": {"margin": 2}}, "runs": [{"name": "a", **first}, {"name": "b"}]}
    runs = plan(with_fields(values, {"loss": {"margin": {"end": 3}}, "seeds": 2}))
    margins = [(run.folder, run.loss.margin.start, run.loss.margin.end) for run in runs]
    assert margins == [
        ("a-i0-d0", 1.0, 3.0),
        ("a-i1-d1", 1.0, 3.0),
        ("b-i0-d0", 2.0, 3.0),
        ("b-i1-d1", 2.0, 3.0),
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"training": {"steps": 5}, "name": "x y"},
        {"loss": {"margin": {"start": float("inf")}, "options": {}}},
        {"loss": {"options": {"gamma": 1.5, "word": "5", "no": "no", "none": None}}},
        {"data": {"shares": [0.25, 0.75], "source": "folder:a b?errors=replace"}},
        {"data": {"source": "null"}, "zero_rows": {"languages": ["de", "mk"], "share": 1e-3}},
        {"data": {"source": "a: ["}},
    ],
)
def test_the_command_for_records_means_the_same_values(given: dict[str, Any]) -> None:
    said = shlex.split(repeat("train", "a b.yaml", given))
    assert said[:3] == ["elbowroom", "train", "a b.yaml"]
    own, words = apart(said[2:], ["quiet"])
    assert own == ["a b.yaml"]
    found = fields(words)
    if "margin" in found.get("loss", {}):  # a word that the configuration reads as a number
        found["loss"]["margin"]["start"] = float(found["loss"]["margin"]["start"])
    assert found == given


def test_a_name_may_be_written_with_dashes_and_said_again() -> None:
    assert fields(["--training.log-every", "5", "--training.log_every=6"]) == {
        "training": {"log_every": 6}
    }
    assert fields(["--loss.margin.end=2", "--loss.margin=1"]) == {"loss": {"margin": 1}}


@pytest.mark.parametrize("words", [["--"], ["x"], ["--a.b"], ["--a=1", "--a.b=2"]])
def test_fields_that_cannot_be_read(words: list[str]) -> None:
    with pytest.raises(UsageError):
        fields(words)


def test_plans_that_are_none() -> None:
    with pytest.raises(UsageError, match="--base"):
        with_fields({}, {"base": {"training": {"steps": 5}}})
    with pytest.raises(ArgumentValueError, match="seeds"):
        plan(with_fields({"init_seed": 4}, {"seeds": 2}))


def names(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        yield name
        yield from names(value) if isinstance(value, Mapping) else ()


def test_the_page_names_every_field() -> None:
    page = Path(__file__).parents[2] / "docs" / "lab.md"
    named = set(re.findall(r"`(?:\w+\.)*(\w+)`", page.read_text(encoding="utf-8")))
    assert set(names(as_plain(RunConfig()))) <= named
