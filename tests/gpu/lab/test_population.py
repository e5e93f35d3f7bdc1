"""Populations on a GPU: a captured graph changes nothing, the CPU's losses, runs that go astray."""

from __future__ import annotations

import math

import pytest
import torch

from elbowroom.lab import batches
from elbowroom.lab.population import WARM_UP, Population
from tests.lab.test_population import RESUMED, all_losses
from tests.lab.toy import corpus, run, same_states

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STEPS = 12
EAGER = {"compile": False}
LOSSES = [
    {},
    {"margin": 0.5, "protect": {"languages": ["lr"]}, "protect_until": 0.3},
    {"margin": {"start": 0.5, "end_top_p": 0.999}, "variant": "softminus"},
    {"margin": {"start": 0.2, "end": 2, "norms": "both"}},
    {"name": "focal"},
    {"name": "agg", "count_steps": 3},
]
OPTIMIZERS = [{}, {"name": "row_adamw", "catch_up": True}, {"name": "coupled_adamw"}]


def population(runs, device="cuda"):
    return Population(runs, corpus(), torch.device(device))


def several(losses=LOSSES, training=None, **change):
    training = EAGER | (training or {})
    return [
        run(name=f"r{i}", init_seed=i, loss=loss, training=training, **change)
        for i, loss in enumerate(losses)
    ]


def history(trained, steps=STEPS):
    """Return the loss and the gradient's norm of each run at each step."""
    found = []
    for _ in range(steps):
        trained.loss_sum.zero_()
        trained.advance(1)
        found.append(torch.stack((trained.loss_sum.cpu(), trained.grad_norm.double().cpu())))
    return torch.stack(found)


def states(trained):
    return [trained.run_state(r) for r in range(len(trained.runs))]


def same_but_for_nan(a, b):
    """Tell whether two states have the same bits where they are numbers."""
    return same_states(*({k: x.nan_to_num(-7.0) for k, x in s.items()} for s in (a, b)))


# Graphs


def test_a_graph_goes_on_beside_measured_gradients():
    losses = LOSSES[:2]
    plain = population(several(losses))
    first, second = (population(several(losses, {"gradients_every": 3})) for _ in range(2))
    for each in (plain, first, second):
        each.advance(STEPS)
        assert each._graph is not None
    assert first.gradients.ratios.steps == STEPS // 3
    for r in range(len(losses)):
        assert same_states(first.model_state(r), plain.model_state(r))
        assert same_states(first.gradient_state(r), second.gradient_state(r))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_the_best_weights_are_kept_beside_a_graph_without_waiting(monkeypatch):
    keep = {"keep": {"which": "best", "every": 2, "batches": 3}}
    plain = population(several())
    captured = population(several(training=keep))
    captured.advance(WARM_UP + 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        captured.advance(STEPS - WARM_UP - 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    plain.advance(STEPS)
    assert captured._graph is not None
    for r in range(len(LOSSES)):
        assert same_states(captured.model_state(r), plain.model_state(r))
    monkeypatch.setattr(Population, "_can_capture", lambda _: False)
    eager = population(several(training=keep))
    eager.advance(STEPS)
    assert captured.chosen() == eager.chosen()
    assert all(step in range(2, STEPS + 1, 2) for step, _ in captured.chosen())
    captured.settle(), eager.settle()
    assert all(map(same_states, states(captured), states(eager)))


@pytest.mark.parametrize("training", [{}, {"accumulate": 2}], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_a_graph_changes_nothing(optimizer, training, monkeypatch):
    runs = several(optimizer=optimizer, training=training)
    captured = population(runs)
    found = history(captured)
    assert captured._graph is not None
    monkeypatch.setattr(Population, "_can_capture", lambda _: False)
    eager = population(runs)
    expected = history(eager)
    assert eager._graph is None
    assert found.isfinite().all()
    assert torch.equal(found, expected)
    assert all(map(same_states, states(captured), states(eager)))


def test_a_graph_is_captured_after_warming_up():
    trained = population(several())
    assert trained.batches.windows.on_device
    trained.advance(WARM_UP - 1)
    assert trained._graph is None
    trained.advance(1)
    assert trained._graph is not None
    assert trained.done == int(trained.step) == WARM_UP  # capturing is no step


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_replays_wait_for_nothing():
    trained = population(several())
    trained.advance(WARM_UP + 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trained.advance(5)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(trained.step) == WARM_UP + 6


def test_text_that_stays_on_the_host(monkeypatch):
    expected = history(population(several()))
    monkeypatch.setattr(batches, "RESIDENT", 0)
    trained = population(several())
    assert not trained.batches.windows.on_device
    assert torch.equal(history(trained), expected)
    assert trained._graph is None


def test_reports_do_not_disturb_a_graph():
    quiet, asked = population(several()), population(several())
    quiet.advance(STEPS)
    for _ in range(STEPS):
        asked.advance(1)
        log = asked.log()
        assert all(map(math.isfinite, log.loss + log.grad_norm + log.kept))
    assert quiet.log().lr == asked.log().lr
    assert all(map(same_states, map(quiet.model_state, range(6)), map(asked.model_state, range(6))))


# The CPU's


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_the_same_windows():
    drawn = [population(several(), device).batches.draw for device in ("cuda", "cpu")]
    for step in (0, 1, 10**6):
        ours, theirs = (
            draw(torch.tensor(step, device=device))
            for draw, device in zip(drawn, ("cuda", "cpu"), strict=True)
        )
        for name in ("ids", "target", "language"):
            assert torch.equal(getattr(ours, name).cpu(), getattr(theirs, name))


@pytest.mark.usefixtures("double")
def test_all_losses_in_float64():
    """To 1e-6, for rates are float32 on a device; no entry is so near to its threshold."""
    runs = all_losses(training=EAGER | {"steps": 6})
    found, expected = (history(population(runs, device), 6) for device in ("cuda", "cpu"))
    for r, config in enumerate(population(runs, "cpu").runs):
        torch.testing.assert_close(
            found[:, :, r],
            expected[:, :, r],
            rtol=1e-6,
            atol=0,
            msg=lambda text, name=config.name: f"{name}: {text}",
        )


def test_cross_entropy_in_float32():
    """Losses to 1e-4 over 20 steps; at a finite margin a mask may differ by rounding."""
    runs = several([{}, {"logit_scale": 2.0}, {"label_smoothing": 0.1, "z_loss": 0.01}])
    found, expected = (history(population(runs, device), 20)[:, 0] for device in ("cuda", "cpu"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


# Going on


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
def test_states_are_all_there_is(optimizer):
    runs = [
        run(**{**c, "optimizer": {**optimizer, **c.get("optimizer", {})}}, training=EAGER)
        for c in RESUMED
    ]
    whole, first = population(runs), population(runs)
    for p in (whole, first):
        p.advance(5)
        p.log()
        p.advance(2)
    second = population(runs)
    second.load_run_states(states(first), first.done, first.since)
    for p in (whole, second):
        p.advance(6)
        assert p._graph is not None
    assert str(whole.log()) == str(second.log())
    assert all(map(same_but_for_nan, states(whole), states(second)))


# Runs that go astray


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_run_stops_alone_inside_a_graph(value):
    runs = several([{"margin": 0.5}, {}, {"margin": 0.5}])
    trained, healthy = population(runs), population(runs)
    names = [config.name for config in trained.runs]
    lost = names.index("r2")
    for p in (trained, healthy):
        p.advance(WARM_UP + 2)
    assert trained._graph is not None
    with torch.no_grad():
        trained.model.blocks[0].mlp.up.weight[lost, 0, 0] = value
    before = trained.model_state(lost)
    for p in (trained, healthy):
        p.advance(4)
    assert trained.alive.tolist() == [r != lost for r in range(3)]
    assert trained.died_at[lost] == WARM_UP + 2
    assert same_but_for_nan(before, trained.model_state(lost))
    for r in {0, 1, 2} - {lost}:
        assert same_states(trained.run_state(r), healthy.run_state(r))
    log = trained.log()
    assert math.isnan(log.loss[lost])
    assert log.alive == trained.alive.tolist()


# Other precisions


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_other_precisions_train(precision):
    training = {"precision": precision, "steps": 60}
    trained = population(several([{}, {"margin": 0.5}, {"name": "focal"}], training=training))
    trained.advance(1)
    first = trained.log().loss
    trained.advance(40)
    trained.log()
    trained.advance(10)
    last = trained.log().loss
    assert all(b < 0.97 * a for a, b in zip(first, last, strict=True))
    assert all(p.dtype == torch.float32 for p in trained.model.parameters())
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("precision", "near"), [("bf16", 5e-3), ("tf32", 1e-3)])
def test_other_precisions_are_near_float32(precision, near):
    runs = {p: several([{}], training={"precision": p}) for p in ("float32", precision)}
    exact, found = (history(population(some), 5)[:, 0] for some in runs.values())
    torch.testing.assert_close(found, exact, rtol=near, atol=0)
    assert not torch.equal(found, exact)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")  # the checker of shapes cannot be traced
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32")
def test_compiled_is_eager():
    losses = [{}, {"logit_scale": 2.0}, {"name": "focal"}]
    compiled = population(several(losses, training={"compile": True}))
    found = history(compiled)
    assert compiled._graph is not None
    torch.testing.assert_close(found, history(population(several(losses))), rtol=1e-4, atol=0)
