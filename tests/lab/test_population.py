"""Populations: each run is trained as if alone, and as a loop written by hand would train it."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from elbowroom.errors import ArgumentValueError
from elbowroom.lab import population as module
from elbowroom.lab.population import Population, population_key
from elbowroom.lab.precision import matmul_precision
from tests.lab.by_hand import ByHand
from tests.lab.toy import corpus, run, same_states

CPU = torch.device("cpu")
SHARES = [0.7, 0.3]
LR = {"languages": ["lr"]}
OURS = {
    "ce": {},
    "narrow": {"margin": 0.3},
    "wide": {"margin": 6, "logit_scale": 2.0},
    "zero": {"margin": 0},
    "annealed": {"margin": {"start": 0.5, "end_top_p": 0.999}},
    "geometric": {"margin": {"start": 0.5, "end": 9, "shape": "geometric", "hold": 0.2}},
    "alpha": {"margin": {"start": 0.3, "norms": "both"}},
    "alpha moves": {"margin": {"start": 0.3, "end": 2, "norms": "hidden", "release": 0.6}},
    "softminus": {"margin": 1, "variant": {"name": "softminus", "c": 0.5}},
    "detached threshold": {
        "margin": 1,
        "variant": {"name": "softminus", "detach_threshold": True},
    },
    "detached below": {"margin": 1, "variant": "detached_below"},
    "decoupled": {"margin": 1, "variant": "decoupled"},
    "leaky": {"margin": 1, "variant": {"name": "leaky", "weight": 0.3}},
    "rare only": {"margin": 1, "variant": {"name": "rare_only", "rows": {"quantile": 0.3}}},
    "protected": {"protect": LR},
    "protected half-way": {"margin": 2, "protect": {"language_share": 0.4}, "protect_until": 0.5},
    "smooth": {"margin": 1, "label_smoothing": 0.1, "z_loss": 0.01},
    "cosreg": {"margin": 1, "penalty": "cosreg", "penalty_weight": 0.5},
    "laplacian": {"penalty": "laplacian"},
    "centering": {"penalty": "centering", "penalty_weight": 3.0},
}
RIVALS = {
    "acsl": {},
    "adversarial": {"options": {"alpha": 0.1}},
    "agg": {"count_steps": 3},
    "class_balanced": {"options": {"beta": 0.99}},
    "contrastive_weight_tying": {},
    "entmax15": {},
    "equalization": {"options": {"threshold": 0.02, "gamma": 0.8}},
    "focal": {"options": {"gamma": 1}},
    "ldam": {"options": {"s": 4}},
    "logit_adjusted": {"count_steps": 2, "logit_scale": 1.5},
    "mile": {"penalty": "cosreg"},
    "sampled_softmax": {"options": {"samples": 6, "proposal": "frequency"}},
    "seesaw": {},
    "sparsemax": {},
}


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def population(runs):
    return Population(runs, corpus(), CPU)


def named(name, **change):
    return run(name=name.replace(" ", "-"), **change)


def check_against_hand(runs, steps=6, tolerance=1e-9, shares=None):
    """Train runs together, and each by hand; losses, norms and weights agree."""
    together = population(runs)
    losses, norms = [], []
    for _ in range(steps):
        together.advance(1)
        losses.append(together.loss_sum.clone())
        norms.append(together.grad_norm.clone())
    losses = torch.stack(losses).diff(dim=0, prepend=torch.zeros(1, len(runs)))
    for r, config in enumerate(together.runs):
        alone = ByHand(config, corpus(), shares or SHARES).steps(steps)
        state = alone.model.run_state(0)
        for i in range(steps):
            where = f"{config.name}, step {i}"
            assert losses[i, r].item() == pytest.approx(alone.losses[i], rel=tolerance), where
            assert norms[i][r].item() == pytest.approx(alone.norms[i], rel=1e-6), where
        for name, value in together.model.run_state(r).items():
            torch.testing.assert_close(
                value, state[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n} {m}"
            )
    return together


def all_losses(**change):
    seeds = itertools.count()
    ours = [named(n, loss=loss, init_seed=next(seeds), **change) for n, loss in OURS.items()]
    theirs = [
        named(
            n, loss={"name": n, **loss}, init_seed=next(seeds), data_seed=int(n == "agg"), **change
        )
        for n, loss in RIVALS.items()
    ]
    return theirs[::-1] + ours


@pytest.mark.usefixtures("double")
def test_all_losses_in_one_population_as_by_hand():
    runs = all_losses(training={"steps": 6})
    together = check_against_hand(runs)
    assert sorted(r.name for r in together.runs) == sorted(r.name for r in runs)
    assert len({population_key(r) for r in runs}) == 1
    log = together.log()
    assert all(math.isfinite(x) for x in log.loss + log.grad_norm + log.kept)
    assert log.alive == [True] * len(runs)
    kept = dict(zip((r.name for r in together.runs), log.kept, strict=True))
    assert kept["ce"] == kept["focal"] == 1
    assert kept["zero"] < kept["narrow"] < 1


MODELS = {
    "untied with a bias": {"tied": False, "unigram_bias": True},
    "other parts": {"norm": "rms", "position": "rotary", "mlp": "swiglu", "linear_bias": True},
}


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "row_adamw"},
        {"name": "row_adamw", "catch_up": True, "schedule": "wsd", "decay": 0.5},
        {"name": "coupled_adamw", "schedule": "constant", "warmup": 0},
        {"name": "adamw", "center": True, "clip": 0},
    ],
    ids=["rows", "rows that catch up", "coupled", "centered"],
)
def test_optimizers_and_models_as_by_hand(optimizer, model):
    change = {"optimizer": optimizer, "model": model, "training": {"steps": 6}}
    losses = [{}, {"margin": 0.2}, {"margin": 0.2, "protect": LR}, {"name": "ldam"}]
    runs = [
        run(name="x", init_seed=i, loss=loss, zero_rows=LR if i % 2 else {}, **change)
        for i, loss in enumerate(losses)
    ]
    check_against_hand(runs)


@pytest.mark.usefixtures("double")
def test_sampling_and_learning_rates_may_differ_within_a_population():
    changes = [
        ({"data": {"sampling": "natural"}}, [0.98, 0.02]),
        ({"data": {"sampling": "temperature", "tau": 2.0}}, [0.98**0.5, 0.02**0.5]),
        ({"data": {"sampling": "unimax", "epochs": 1}}, [0.5, 0.5]),
        ({"data": {"shares": [0.1, 0.9]}, "optimizer": {"lr": 0.02, "min_lr": 0.0}}, [0.1, 0.9]),
    ]
    runs = [run(name=f"r{i}", **change) for i, (change, _) in enumerate(changes)]
    together = population(runs)
    together.advance(5)
    assert together.log().lr == pytest.approx(
        [ByHand(config, corpus(), SHARES).rate(5) for config in together.runs], rel=1e-6
    )
    for config, (_, shares) in zip(together.runs, changes, strict=True):
        alone = ByHand(config, corpus(), shares).steps(5).model.run_state(0)
        for name, value in together.model.run_state(together.runs.index(config)).items():
            torch.testing.assert_close(value, alone[name], rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_is_the_whole_batch(parts):
    losses = [{}, {"margin": 0.5, "penalty": "laplacian"}, {"name": "agg", "count_steps": 2}]
    runs = [
        run(name=f"r{i}", loss=loss, training={"accumulate": parts, "batch": 8})
        for i, loss in enumerate(losses)
    ]
    check_against_hand(runs, steps=4)


def test_clipping_is_by_run():
    runs = [run(name="a", loss={"penalty": "centering", "penalty_weight": 1e6}), run(name="b")]
    together = population(runs)
    together.advance(4)
    alone = population([runs[1]])
    alone.advance(4)
    norm = dict(zip((r.name for r in together.runs), together.grad_norm.tolist(), strict=True))
    assert norm["a"] > 10 * norm["b"]
    assert norm["b"] == pytest.approx(float(alone.grad_norm[0]), rel=1e-5)


# A run alone and in company


OTHERS = [
    {"name": "rival", "loss": {"name": "focal"}, "data_seed": 3},
    {"name": "fast", "optimizer": {"lr": 0.02, "min_lr": 0.01}},
    {"name": "protected", "loss": {"protect": LR, "margin": 2}},
    {"name": "rows", "zero_rows": LR, "init_seed": 9, "data_seed": 9},
    {"name": "annealed", "loss": {"margin": {"start": 0.1, "end_top_p": 0.99}}},
]
STEPS = 200


def gaps(trained, r, batch):
    """Return how far each entry of a batch lies above its threshold: kept if that is at least 0."""
    with torch.no_grad():
        hidden = trained.model(batch.ids.expand(trained.model.runs, *batch.ids.shape[1:]))[r]
        z = hidden.flatten(0, 1) @ trained.model.head[r].T
        target = batch.target[0].flatten()[:, None]
        margin = trained.runs[r].loss.margin.start
        return (z - (z.gather(1, target) - margin)).scatter(1, target, math.inf)


def test_a_run_alone_and_in_a_population_of_eight():
    """The same batches, losses within 1e-5; at a finite margin up to the first mask that differs.

    Before each step the masks of all entries of its batch are compared. Where one differs, the
    entry lies within rounding of its threshold; from there on the two runs have different
    gradients, however small the cause, and are not compared any more.
    """
    change = {"training": {"steps": STEPS}}
    start = {"init_seed": 7, "data_seed": 8, **change}
    own = [run(name=f"own{m}", loss={"margin": m}, **start) for m in (math.inf, 0.5, 3.0)]
    together = population([run(**other, **change) for other in OTHERS] + own)
    agreed = {}
    for config in own:
        agreed[config.name] = STEPS
    alone = {config.name: population([config]) for config in own}
    for step in range(STEPS):
        seen = together.batches.draw(together.step)
        for config in own:
            one, r = alone[config.name], together.runs.index(config)
            batch = one.batches.draw(one.step)
            assert torch.equal(batch.ids[0], seen.ids[r])
            assert torch.equal(batch.target[0], seen.target[r])
            if step < agreed[config.name]:
                a, b = gaps(one, 0, batch), gaps(together, r, batch)
                differ = (a >= 0) != (b >= 0)
                if differ.any():
                    assert max(a[differ].abs().max(), b[differ].abs().max()) < 1e-4
                    agreed[config.name] = step
        for p in (together, *alone.values()):
            p.loss_sum.zero_()
            p.advance(1)
        for config in own:
            if step < agreed[config.name]:
                x = float(alone[config.name].loss_sum[0])
                y = float(together.loss_sum[together.runs.index(config)])
                assert y == pytest.approx(x, rel=1e-5), (config.name, step)
    assert agreed["owninf"] == STEPS
    assert min(agreed.values()) >= 20


# What is started from


def test_zero_rows_and_the_unigram_bias():
    model = {"tied": False, "unigram_bias": True}
    runs = [run(name="zero", model=model, zero_rows=LR), run(name="usual", model=model)]
    started = population(runs)
    names = [r.name for r in started.runs]
    zero, usual = names.index("zero"), names.index("usual")
    lr = torch.as_tensor(corpus().group_of_token) == 1
    for matrix in (started.model.embedding, started.model.head):
        assert (matrix[zero][lr] == 0).all()
        assert torch.equal(matrix[zero][~lr], matrix[usual][~lr])
        assert (matrix[usual][lr] != 0).any()
    counts = started.token_counts[usual].counts
    tokens = 20 * 4 * 8
    assert counts.sum() == pytest.approx(tokens)
    assert counts[lr].sum() == pytest.approx(0.3 * tokens)
    bias = started.model.bias[usual].double()
    expected = ((counts + 1) / (counts + 1).sum()).log()
    torch.testing.assert_close(bias, expected - expected.mean(), rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        logits = bias - bias.logsumexp(0)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


def test_a_language_that_is_not_there():
    with pytest.raises(ArgumentValueError, match=r"languages of the texts \(hr, lr\), got fr"):
        population([run(zero_rows={"languages": ["fr"]})])


def test_runs_that_do_not_go_together():
    with pytest.raises(ArgumentValueError, match="runs: expected runs that differ in loss"):
        population([run(), run(optimizer={"clip": 2})])
    a, b = run(), run(optimizer={"lr": 1.0}, data={"shares": [1, 1]}, loss={"margin": 1}, name="b")
    assert population_key(a) == population_key(replace(b, init_seed=3))
    assert population_key(a) != population_key(run(model={"tied": False}))


def test_the_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with matmul_precision("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
    with pytest.raises(ZeroDivisionError), matmul_precision("float32"):
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_other_precisions_train(precision):
    losses = [{}, {"margin": 0.5}, {"name": "focal"}, {"name": "sparsemax"}]
    change = {"training": {"precision": precision, "steps": 60}}
    runs = [run(name=f"r{i}", loss=loss, **change) for i, loss in enumerate(losses)]
    trained = population(runs)
    trained.advance(1)
    first = trained.log().loss
    trained.advance(40)
    trained.log()
    trained.advance(10)
    last = trained.log().loss
    assert all(b < 0.97 * a for a, b in zip(first, last, strict=True))
    assert all(p.dtype == torch.float32 for p in trained.model.parameters())


def test_bf16_is_near_float32():
    losses = {}
    for precision in ("float32", "bf16"):
        trained = population([run(training={"precision": precision})])
        trained.advance(5)
        losses[precision] = trained.log().loss[0]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=5e-3)
    assert losses["bf16"] != losses["float32"]


def test_compiled_is_eager(monkeypatch):
    """Which parts are compiled on a CPU; what the compiler makes of them is torch's matter."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, **_: compiled.append(f.__name__) or f)
    population([run(training={"compile": True})]).advance(1)
    assert compiled == ["_losses"]
    population([run()])
    assert compiled == ["_losses"]
    monkeypatch.setattr(module, "MOST_COMPILED", 0)  # many kinds of loss: the model alone
    population([run(training={"compile": True})]).advance(1)
    assert compiled == ["_losses", "_hidden"]


# Runs that go astray


def poisoned(optimizer=None, bad=None):
    runs = [run(name=f"r{i}", init_seed=i, optimizer=optimizer or {}) for i in range(3)]
    trained = population(runs)
    trained.advance(4)
    before = trained.run_state(1)
    if bad is not None:
        bad(trained)
    return trained, before


def spoil_target(trained):
    """Let one run's loss be NaN from now on, without touching its weights."""
    losses = trained._losses

    def spoiled(*arguments):
        found = losses(*arguments)
        return found * torch.tensor([1.0, math.nan, 1.0])

    trained._losses = spoiled


OPTIMIZERS = [
    {},
    {"name": "row_adamw", "catch_up": True},
    {"name": "coupled_adamw"},
    {"center": True},
    {"clip": 0},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_nan_stops_one_run_at_its_last_good_state(optimizer):
    trained, before = poisoned(optimizer, spoil_target)
    trained.advance(6)
    assert trained.alive.tolist() == [True, False, True]
    assert trained.died_at.tolist() == [-1, 4, -1]
    after = trained.run_state(1)
    weights = [k for k in before if k.startswith("model.")]
    assert all(torch.equal(before[k], after[k]) for k in weights)
    healthy, _ = poisoned(optimizer)
    healthy.advance(6)
    for r in (0, 2):
        a, b = trained.model.run_state(r), healthy.model.run_state(r)
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)
    log = trained.log()
    assert math.isnan(log.loss[1])
    assert math.isfinite(log.loss[0])
    assert log.alive == [True, False, True]


@pytest.mark.parametrize("norms", [None, "both"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_an_infinite_weight_stops_one_run(norms, value):
    margin = {"start": 0.5, "norms": norms}
    runs = [run(name=f"r{i}", init_seed=i, loss={"margin": margin}) for i in range(3)]
    trained, healthy = population(runs), population(runs)
    for p in (trained, healthy):
        p.advance(2)
    with torch.no_grad():
        trained.model.blocks[0].mlp.up.weight[1, 0, 0] = value
    for p in (trained, healthy):
        p.advance(3)
        p.log()
    assert trained.alive.tolist() == [True, False, True]
    for r in (0, 2):
        a, b = trained.model.run_state(r), healthy.model.run_state(r)
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)


def test_a_learning_rate_that_is_much_too_large():
    runs = [run(name="wild", optimizer={"lr": 1e30}), run(name="tame")]
    trained, alone = population(runs), population([runs[1]])
    for p in (trained, alone):
        p.advance(12)
    names = [r.name for r in trained.runs]
    wild, tame = names.index("wild"), names.index("tame")
    assert trained.alive[tame]
    assert not trained.alive[wild]
    assert all(x.isfinite().all() for x in trained.model.run_state(wild).values())
    for name, x in trained.model.run_state(tame).items():
        torch.testing.assert_close(x, alone.model.run_state(0)[name], rtol=1e-4, atol=1e-6)


# Going on


RESUMED = [
    {"name": "agg", "loss": {"name": "agg", "count_steps": 3}},
    {"name": "whole", "loss": {"name": "ldam", "count_steps": 100}},
    {"name": "ours", "loss": {"margin": {"start": 0.2, "end_top_p": 0.99}}},
    {"name": "wild", "optimizer": {"lr": 1e30}},
    {"name": "unequal", "data": {"shares": [0.5, 0.5]}, "data_seed": 4},
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_states_of_runs_are_all_there_is(optimizer):
    optimizer = {k: v for k, v in optimizer.items() if k != "lr"}
    runs = [run(**{**c, "optimizer": {**optimizer, **c.get("optimizer", {})}}) for c in RESUMED]
    whole, first = population(runs), population(runs)
    for p in (whole, first):
        p.advance(5)
        p.log()
        p.advance(2)
    states = [{k: x.clone() for k, x in first.run_state(r).items()} for r in range(len(runs))]
    second = population(runs)
    second.load_run_states(states, first.done, first.since)
    assert (second.done, second.since) == (7, 2)
    for p in (whole, second):
        p.advance(6)
    assert whole.log() == pytest.approx(second.log(), nan_ok=True) or str(whole.log()) == str(
        second.log()
    )
    for r in range(len(runs)):
        a, b = whole.run_state(r), second.run_state(r)
        assert a.keys() == b.keys()
        for name in a:
            assert torch.equal(a[name].nan_to_num(-7.0), b[name].nan_to_num(-7.0)), name


def test_training_that_is_over():
    trained = population([run(name="a"), run(name="b")])
    trained.end_at(20, [-1, 7], trained.chosen())
    assert (trained.done, trained.since, int(trained.step)) == (20, 0, 20)
    assert trained.alive.tolist() == [True, False]
    assert trained.died_at.tolist() == [-1, 7]
    assert trained.log().lr == pytest.approx([0.001, 0.001])


def test_rows_that_wait_are_settled_at_the_end():
    rows = {"name": "row_adamw", "catch_up": True}
    trained = population([run(optimizer=rows, model={"tied": False})])
    trained.advance(6)
    row_step = trained.optimizer.state[trained.model.embedding]["row_step"]
    assert (row_step < 6).any()
    before = trained.model.run_state(0)
    trained.settle()
    assert (trained.optimizer.state[trained.model.embedding]["row_step"] == 6).all()
    assert not same_states(before, trained.model.run_state(0))
    plain = population([run()])
    plain.advance(1)
    before = plain.model.run_state(0)
    plain.settle()
    assert same_states(before, plain.model.run_state(0))
