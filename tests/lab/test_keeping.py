"""The weights that are kept: those of the lowest estimate, run by run, also after a stop."""

from __future__ import annotations

import math

import pytest
import torch

from elbowroom.errors import ArgumentValueError
from elbowroom.lab.batches import Batches
from elbowroom.lab.config import TrainingConfig, merge, run_config
from elbowroom.lab.evaluation import Judge
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.keeping import Best
from elbowroom.lab.population import Population, population_key
from elbowroom.losses import linear_thresholded_cross_entropy
from elbowroom.rivals import contrastive_weight_tying
from tests.lab.observed import Watch, differences
from tests.lab.toy import corpus, fit, run, same_states

pytestmark = pytest.mark.usefixtures("unchecked")  # bits are compared; shapes are elsewhere
CPU = torch.device("cpu")
BEST = {"which": "best", "every": 2, "batches": 3}
WILD = {"name": "wild", "optimizer": {"lr": 1e30}}


def keeping(steps=12, **change):
    return run(**merge({"training": {"steps": steps, "keep": BEST}}, change))


def population(*runs):
    return Population(list(runs), corpus(), CPU)


def following(monkeypatch, losses):
    """Let the estimates be these numbers, one a look and run."""
    given = iter(losses)
    found = lambda *_: torch.tensor(next(given), dtype=torch.float64)  # noqa: E731
    monkeypatch.setattr(Best, "estimate", found)


# What is estimated


def batches(config, split="validation", runs=1):
    shares = torch.tensor([[0.7, 0.3]]).expand(runs, -1)
    options = {"batch": config.training.batch, "context": 8, "device": CPU}
    return Batches(corpus(), shares, [config.data_seed] * runs, split=split, **options)


@torch.no_grad()
def by_hand(trained, r, loss):
    """Return the mean over three random batches of held-out text after the step."""
    config, model = trained.runs[r], trained.model
    total = 0.0
    for i in range(3):
        batch = batches(config).draw(trained.step * 3 + i)
        hidden = model(batch.ids.expand(model.runs, -1, -1))[r].flatten(0, 1)
        total += float(loss(hidden, model.head[r], batch.target.flatten()))
    return total / 3


def cross_entropy(scale=1.0):
    def loss(hidden, weight, target):
        return linear_thresholded_cross_entropy(hidden, weight, target, math.inf, logit_scale=scale)

    return loss


def test_the_estimate_is_plain_cross_entropy_on_held_out_batches():
    scaled = {"margin": 0.3, "logit_scale": 2.0}
    changes = [
        ({"loss": {"margin": 0.3}}, cross_entropy()),
        ({"loss": scaled, "data_seed": 3}, cross_entropy(2.0)),
        ({"loss": {**scaled, "scale_after_training": False}}, cross_entropy()),
        ({"loss": {"name": "contrastive_weight_tying"}}, cross_entropy()),
        (
            {
                "loss": {"name": "contrastive_weight_tying"},
                "training": {"keep": {"by": "objective"}},
            },
            contrastive_weight_tying,
        ),
    ]
    runs = [keeping(name=f"r{i}", init_seed=i, **change) for i, (change, _) in enumerate(changes)]
    trained = population(*runs)
    trained.advance(2)
    found = trained.best.estimate(trained)
    for config, (_, loss) in zip(runs, changes, strict=True):
        r = trained.runs.index(config)
        assert float(found[r]) == pytest.approx(by_hand(trained, r, loss), rel=1e-6)
    assert torch.equal(trained.best.loss, found)
    assert trained.best.step.tolist() == [2] * len(runs)


def test_an_estimate_in_parts_is_the_same():
    whole, parts = (population(keeping(training={"accumulate": n})) for n in (1, 2))
    torch.testing.assert_close(whole.best.estimate(whole), parts.best.estimate(parts))


def test_checks_draw_held_out_windows_of_their_own():
    config, step = run(data_seed=5), torch.tensor(7)
    held_out, trained = (batches(config, split).draw(step) for split in ("validation", "train"))
    text = corpus().validation[0].tokens.tobytes()
    for ids, language in zip(held_out.ids[0], held_out.language[0], strict=True):
        own = ids - corpus().validation[int(language)].offset
        assert own.numpy().astype("uint8").tobytes() in text
    assert not torch.equal(held_out.language, trained.language) or not torch.equal(
        held_out.ids, trained.ids
    )
    many = batches(run(training={"batch": 2000})).draw(step)
    assert float(many.language.double().mean()) == pytest.approx(0.3, abs=0.03)


def test_training_comes_to_the_same_bits_with_and_without():
    plain, kept = population(run()), population(keeping(steps=20))
    for each in (plain, kept):
        each.advance(7)
    assert same_states(plain.model_state(0), kept.model_state(0))


# What is kept


def test_each_run_keeps_the_weights_of_its_lowest_loss(monkeypatch):
    following(monkeypatch, [[3.0, 5.0], [2.0, math.nan], [2.0, 4.0], [2.5, 4.5]])
    trained = population(keeping(name="a"), keeping(name="b", init_seed=1))
    seen = []
    for _ in range(8):
        trained.advance(1)
        seen.append([trained.model_state(r) for r in range(2)])
    assert trained.chosen() == [(4, 2.0), (6, 4.0)]
    trained.settle()
    assert same_states(trained.model_state(0), seen[3][0])
    assert same_states(trained.model_state(1), seen[5][1])


def test_a_run_that_died_keeps_its_best(tmp_path):
    wild, tame, early = fit(
        [
            keeping(**merge(WILD, {"optimizer": {"warmup": 9, "lr": 1e4}})),
            keeping(name="tame"),
            keeping(**WILD | {"name": "early", "optimizer": {"lr": 1e30, "warmup": 0}}),
        ],
        tmp_path,
    ).folders
    assert wild.record["status"] == early.record["status"] == "failed"
    assert wild.record["chosen"]["step"] == wild.load_model()[1] <= wild.record["steps"]
    assert wild.record["chosen"]["loss"] is not None
    assert tame.record["status"] == "done"
    died = early.record["steps"]
    assert died < 2
    assert early.record["chosen"] == {"step": died, "loss": None}


def test_the_record_is_of_the_weights_that_are_kept(tmp_path, monkeypatch):
    following(monkeypatch, [[3.0], [1.0], [2.0], [2.0], [2.0], [2.0]])
    config = keeping()
    (folder,) = fit([config], tmp_path).folders
    assert folder.record["chosen"] == {"step": 4, "loss": 1.0}
    assert (folder.record["steps"], folder.load_model()[1]) == (12, 4)
    four = population(run(training={"steps": 12}))
    four.advance(4)
    assert same_states(folder.load_model()[0], four.model_state(0))
    bins = four.token_counts[0].bins(3)
    judged = Judge(corpus(), four.model, [1.0], config.evaluation, bins).full()[0]
    assert {name: folder.record[name] for name in judged} == judged


def test_without_an_estimate_the_last_weights_are_kept(tmp_path):
    few = {"training": {"keep": {"every": 100}}}
    (folder,) = fit([keeping(**few)], tmp_path / "best").folders
    (plain,) = fit([run(training={"steps": 12})], tmp_path / "last").folders
    assert folder.record["chosen"] == {"step": 12, "loss": None}
    assert "chosen" not in plain.record
    assert same_states(folder.load_model()[0], plain.load_model()[0])


def test_only_the_evaluation_is_missing(tmp_path, monkeypatch):
    """The weights that were kept, and why, outlive the end of training."""
    runs = [keeping(name="a"), keeping(name="b", init_seed=3)]
    expected = fit(runs, tmp_path / "whole")
    assert len({f.record["chosen"]["loss"] for f in expected.folders}) == 2

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Judge, "full", killed)
        with pytest.raises(KeyboardInterrupt):
            fit(runs, tmp_path / "parts")
    assert RunFolder(tmp_path / "parts" / "a-i0-d0").end.best_step > 0
    watch = Watch()
    found = fit(runs, tmp_path / "parts", resume=True, observer=watch)
    assert [kind for kind, _ in watch.steps()] == ["start", "judge", "done"]
    assert differences(found, expected) == []


# Configuration


def test_the_configuration():
    short = run_config({"training": {"keep": "best"}}).training.keep
    assert (short.which, short.every, short.batches, short.by) == ("best", 250, 20, "cross_entropy")
    assert TrainingConfig().keep.which == "last"
    assert merge({"training": {"keep": "best"}}, {"training": {"keep": {"every": 9}}}) == {
        "training": {"keep": {"which": "best", "every": 9}}
    }
    said = "training.keep.every: expected an integer, at least 1, got 0"
    with pytest.raises(ArgumentValueError, match=said):
        run_config({"training": {"keep": {"every": 0}}})
    with pytest.raises(ArgumentValueError, match=r"training.keep.which: expected one of 'last', "):
        run_config({"training": {"keep": "first"}})


def test_runs_that_differ_in_what_they_are_chosen_by_share_a_population():
    own = keeping(training={"keep": {"by": "objective"}})
    assert population_key(own) == population_key(keeping())
    assert population_key(run()) != population_key(keeping(steps=20))
