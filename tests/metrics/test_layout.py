"""What an evaluation refuses, each with the argument's name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.metrics import Evaluation

LONG = torch.zeros(3, dtype=torch.long)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "name", "kind"),
    [
        ({"vocab_size": 0}, "vocab_size", ArgumentValueError),
        ({"vocab_size": 4.0}, "vocab_size", ArgumentTypeError),
        ({"groups": 0}, "groups", ArgumentValueError),
        ({"groups": True}, "groups", ArgumentTypeError),
        ({"groups": "HR"}, "groups", ArgumentValueError),
        ({"groups": ()}, "groups", ArgumentValueError),
        ({"groups": ("a", "a")}, "groups", ArgumentValueError),
        ({"groups": 2.0}, "groups", ArgumentValueError),
        ({"bin_of_token": LONG}, "bin_of_token", ArgumentValueError),
        ({"bin_of_token": torch.full((4,), -1)}, "bin_of_token", ArgumentValueError),
        ({"bin_of_token": torch.zeros(4)}, "bin_of_token", ArgumentTypeError),
        ({"byte_lengths": [1, 1, 1, 1]}, "byte_lengths", ArgumentTypeError),
        ({"group_of_token": LONG}, "group_of_token", ArgumentValueError),
        ({"temperatures": [0.0]}, "temperatures", ArgumentValueError),
        ({"temperatures": []}, "temperatures", ArgumentValueError),
        ({"temperatures": torch.tensor(1.0)}, "temperatures", ArgumentTypeError),
        ({"temperatures": 1.0}, "temperatures", ArgumentTypeError),
        ({"recall": (0,)}, "recall", ArgumentValueError),
        ({"recall": 5}, "recall", ArgumentTypeError),
        ({"calibration_bins": 0}, "calibration_bins", ArgumentValueError),
        ({"runs": 0}, "runs", ArgumentValueError),
        ({"ignore_index": 0.5}, "ignore_index", ArgumentTypeError),
    ],
)
def test_bad_construction(options, name, kind):
    with pytest.raises(kind, match=f"^{name}: expected"):
        Evaluation(**({"vocab_size": 4} | options))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "name", "kind"),
    [
        ({"weight": torch.zeros(5, 2)}, "weight", ArgumentValueError),
        ({"weight": torch.zeros(1, 4, 2)}, "weight", ArgumentValueError),
        ({"weight": None}, "weight", ArgumentTypeError),
        ({"hidden": torch.zeros(3, 5)}, "hidden", ArgumentValueError),
        ({"hidden": LONG}, "hidden", ArgumentTypeError),
        ({"target": torch.zeros(3)}, "target", ArgumentTypeError),
        ({"target": LONG + 4}, "target", ArgumentValueError),
        ({"group": None}, "group", ArgumentValueError),
        ({"group": 2}, "group", ArgumentValueError),
        ({"group": -1}, "group", ArgumentValueError),
        ({"group": LONG + 2}, "group", ArgumentValueError),
        ({"group": LONG[:2]}, "group", ArgumentValueError),
        ({"group": torch.zeros(3)}, "group", ArgumentTypeError),
        ({"logit_scale": 0.0}, "logit_scale", ArgumentValueError),
    ],
)
def test_bad_update(change, name, kind):
    given = {"hidden": torch.zeros(3, 2), "weight": torch.zeros(4, 2), "target": LONG, "group": 0}
    with pytest.raises(kind, match=f"^{name}: expected"):
        Evaluation(4, groups=2).update(**(given | change))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("change", "name", "kind"),
    [
        ({"logits": torch.zeros(3, 5)}, "logits", ArgumentValueError),
        ({"logits": torch.tensor(1.0)}, "logits", ArgumentValueError),
        ({"logits": LONG}, "logits", ArgumentTypeError),
        ({"target": LONG[:2]}, "target", ArgumentValueError),
        ({"target": LONG - 1}, "target", ArgumentValueError),
        ({"target": [0, 0, 0]}, "target", ArgumentTypeError),
        ({"group": 0}, "group", ArgumentValueError),
    ],
)
def test_bad_update_of_logits(change, name, kind):
    with pytest.raises(kind, match=f"^{name}: expected"):
        Evaluation(4).update_logits(**({"logits": torch.zeros(3, 4), "target": LONG} | change))


@pytest.mark.usefixtures("unchecked")
def test_bad_runs():
    with pytest.raises(ArgumentValueError, match=r"^logits: expected \[R, ..., V\] with V = 4"):
        Evaluation(4, runs=2).update_logits(torch.zeros(3, 4), LONG)
    with pytest.raises(ArgumentValueError, match=r"^logits"):
        Evaluation(4, runs=2).update_logits(torch.zeros(4), torch.tensor(0))


@pytest.mark.usefixtures("unchecked")
def test_bad_merge_and_temperature():
    found = Evaluation(4, temperatures=[0.5, 1.0], bin_of_token=torch.tensor([0, 0, 1, 1]))
    with pytest.raises(ArgumentValueError, match=r"^other"):
        found.merge(Evaluation(4))
    bins = torch.tensor([0, 1, 1, 1])
    with pytest.raises(ArgumentValueError, match=r"^other"):
        found.merge(Evaluation(4, temperatures=[0.5, 1.0], bin_of_token=bins))
    with pytest.raises(ArgumentTypeError, match=r"^other"):
        found.merge(found.result())
    result = found.result()
    with pytest.raises(ArgumentValueError, match=r"^temperature: expected one of the 2"):
        result.ppl_at(0.7)
    with pytest.raises(ArgumentValueError, match=r"^temperature"):
        result.ppl_at(torch.ones(3))
    with pytest.raises(ArgumentTypeError, match=r"^temperature: expected a number"):
        result.ppl_at("1")
    without = replace(result, temperatures=None, nll_by_temperature=None)
    for read in (lambda: without.best_ppl, lambda: without.nll_at(1.0)):
        with pytest.raises(ArgumentValueError, match=r"^temperatures: expected a sweep"):
            read()
