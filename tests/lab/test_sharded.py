"""Runs that two processes share, step by step: the numbers of one, whoever has the weights.

Each process takes half of a batch, as one process with two parts does, and both average what they
find: by ddp the bits are the same. By fsdp they are, too, while nothing is summed over parts of the
weights: the norm of the gradient is, and its rounding goes into all that is clipped.
"""

from __future__ import annotations

import functools
import re

import pytest
import torch
from safetensors.torch import load_file

from elbowroom.errors import ArgumentValueError
from elbowroom.lab import sharded
from elbowroom.lab.config import merge
from elbowroom.lab.distributed import ALONE
from elbowroom.lab.model import GPT, ModelConfig
from elbowroom.lab.sharded import ShardedPopulation, shard
from tests.lab.torchrun_jobs import CPU, follow, population, spoiled, states_equal
from tests.lab.torchrun_pair import Pair
from tests.lab.toy import corpus, run

STEPS = 4
LR = {"languages": ["lr"]}
PARTS = {"training": {"accumulate": 2, "batch": 8}}
COUNTING = {"loss": {"name": "agg", "count_steps": 3}, "optimizer": {"clip": 0.05}}
CATCHING_UP = {
    "loss": {"name": "sampled_softmax", "options": {"samples": 4}},
    "model": {"tied": False},
    "optimizer": {"name": "row_adamw", "catch_up": True, "clip": 0.5},
}
CASES = {
    "ddp": {
        "plain": {},
        "in parts": PARTS,
        "counting and clipped": COUNTING,
        "rows that catch up": CATCHING_UP,
        "coupled and centered": {"optimizer": {"name": "coupled_adamw", "center": True}},
        "not finite": {"spoil": 2},
    },
    "fsdp": {
        "plain": {"optimizer": {"clip": 0}},
        "in parts": PARTS,
        "counting and clipped": COUNTING,
        "rows that catch up": CATCHING_UP,
        "rows, tied": {"optimizer": {"name": "row_adamw"}, "zero_rows": LR},
        "other parts": {
            "model": {"tied": False, "unigram_bias": True, "norm": "rms", "mlp": "swiglu"}
        },
        "not finite": {"spoil": 2},
    },
}
EXACT = {"ddp": CASES["ddp"].keys() - {"in parts"}, "fsdp": {"plain"}}
ALL = [(mode, name) for mode, cases in CASES.items() for name in cases]


@functools.cache
def alone(mode, name, parts):
    """Return what one process sees and has at the end, its batch in so many times more parts."""
    change = dict(CASES[mode][name])
    spoil = change.pop("spoil", None)
    times = parts * change.get("training", {}).get("accumulate", 1)
    trained = population(run(**merge(change, {"training": {"accumulate": times}})), ALONE)
    if spoil is not None:
        spoiled(trained, spoil)
    return follow(trained, STEPS)


@pytest.fixture(scope="module")
def together(partner, tmp_path_factory):
    """What two processes see and have at the end, by the way they share it; made once."""

    @functools.cache
    def make(mode):
        folder = tmp_path_factory.mktemp(mode)
        pair = Pair(partner, folder, pytest.MonkeyPatch())
        training = {"training": {"parallel": mode}}
        cases = {name: merge(change, training) for name, change in CASES[mode].items()}
        arguments = {"folder": str(folder), "cases": cases, "steps": STEPS}
        return pair.both("advance", arguments, rank=int(mode == "fsdp")), folder

    return make


def close(found, expected):
    """Compare two pairs of reports and states that may differ by rounding.

    An ulp of float32 is 1e-7. AdamW divides by roots of small moments, so that it grows in some
    weights: to 2e-6, where they move by 1e-2 a step.
    """
    for a, b in zip(found[0], expected[0], strict=True):
        assert a == pytest.approx(b, rel=1e-5, nan_ok=True)
    assert found[1].keys() == expected[1].keys()
    for name, x in expected[1].items():
        torch.testing.assert_close(found[1][name], x, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("mode", "name"), ALL)
def test_two_processes_are_as_one(together, mode, name):
    (first, second), folder = together(mode)
    one, other = (load_file(folder / f"{name}-{rank}.safetensors") for rank in range(2))
    assert str(first[name]) == str(second[name])
    assert states_equal(one, other)
    in_halves, whole = (alone(mode, name, parts) for parts in (2, 1))
    close((first[name], one), in_halves)
    close((first[name], one), whole)
    if name in EXACT[mode]:
        assert states_equal(one, in_halves[1])


@pytest.mark.parametrize("mode", CASES)
def test_what_cases_are_about(together, mode):
    """Clipping, rows that wait, and a run that stops in all processes at one process's step."""
    (seen, _), folder = together(mode)
    assert all(norm > 0.05 for _, norm, *_ in seen["counting and clipped"])
    state = load_file(folder / "rows that catch up-0.safetensors")
    assert (state["optimizer.embedding.row_step"] < STEPS).any()
    assert (state["optimizer.output.row_step"] < STEPS).any()
    assert not torch.equal(state["settled.embedding"], state["model.embedding"])
    assert [died for *_, died in seen["not finite"]] == [-1, -1, 2, 2]


# What cannot be cut


REFUSED = [
    ({"optimizer": {"name": "coupled_adamw"}}, r"optimizer.name: .* got coupled_adamw; leave it"),
    ({"optimizer": {"center": True}}, "optimizer.center: .* got True; leave it out, or set"),
    ({"training": {"batch": 3}}, "training.batch: expected a multiple of 2 processes"),
    (
        {"model": {"width": 15, "heads": 1}},
        r"training.parallel: expected a dimension that 2 processes divide in "
        r"blocks.0.attention_norm.weight, got \[15\]; have fewer",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_refused_is_refused_by_all(pair, tmp_path, change, message):
    change = merge(change, {"training": {"parallel": "fsdp"}})
    arguments = {"output": str(tmp_path / "out"), "runs": [change]}
    for found in pair.both("train", arguments):
        assert found["error"] == "ArgumentValueError"
        assert re.match(message, found["said"])
        assert found["told"] == []
    assert not (tmp_path / "out").exists()


def test_rows_stay_whole():
    change = {"optimizer": {"name": "row_adamw"}, "training": {"batch": 6, "parallel": "fsdp"}}
    with pytest.raises(ArgumentValueError, match=r"vocab_size: .* 3 processes, .* rows .* got 40"):
        ShardedPopulation([run(**change)], corpus(), CPU, world=3)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_cut_and_compiled(monkeypatch, compiled):
    """Block by block, each compiled before it is cut; the rest stays whole for the loss."""
    model = GPT(ModelConfig(vocab_size=10, layers=2, heads=2, width=6, context=3), [0])
    names = {id(module): name for name, module in model.named_modules()}
    cuts, calls = {}, []

    def cut(module, *, mesh, shard_placement_fn, reshard_after_forward=True):
        assert mesh == ("cpu", (2,))
        calls.append(("cut", names[id(module)], reshard_after_forward))
        for name, param in model.named_parameters():
            cuts[name] = shard_placement_fn(param).dim

    monkeypatch.setattr(sharded, "fully_shard", cut)
    monkeypatch.setattr(sharded, "init_device_mesh", lambda *given: given)
    for i, block in enumerate(model.blocks):
        monkeypatch.setattr(block, "compile", lambda i=i: calls.append(("compile", i)))
    shard(model, CPU, 2, compiled=compiled)
    first, second = ([("compile", i), ("cut", f"blocks.{i}", True)] for i in range(2))
    start = 0 if compiled else 1
    assert calls == [*first[start:], *second[start:], ("cut", "", False)]
    assert cuts["embedding"] == cuts["norm.weight"] == 1
    assert cuts["positions"] == 2  # 3 places, 6 numbers
