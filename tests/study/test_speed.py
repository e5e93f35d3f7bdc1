"""What measures speed: its data, its peers, its rounds. No test looks at how long anything took."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

import elbowroom as er
from elbowroom.errors import ArgumentValueError, FileError
from elbowroom.study import speed
from elbowroom.study.speed import chunked, peers, problem, rounds

SHAPE = speed.Shape(70, 16, 500)
CPU = speed.Timer("cpu")


@pytest.fixture(params=[False, True], ids=["scattered", "clustered"])
def data(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> speed.Problem:
    monkeypatch.setattr(problem, "AT_ONCE", 9 * SHAPE.vocab)  # several parts, the last not full
    return speed.synthetic(SHAPE, clustered=request.param, seed=3)


def test_the_seed_decides_the_data(data: speed.Problem) -> None:
    clustered = data.data == "clustered"
    again = speed.synthetic(SHAPE, clustered=clustered, seed=3)
    other = speed.synthetic(SHAPE, clustered=clustered, seed=4)
    assert data.shape == SHAPE
    assert torch.equal(data.target, again.target)
    assert torch.equal(data.weight, again.weight)
    assert not torch.equal(data.hidden, other.hidden)
    assert torch.equal(speed.share_margins(data, 0.1), speed.share_margins(again, 0.1))


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1, 0.02])
def test_margins_keep_the_share(data: speed.Problem, share: float) -> None:
    margin = speed.share_margins(data, share)
    assert margin.shape == data.target.shape
    assert (margin >= 0).all()
    assert speed.kept(data, margin)[0] == pytest.approx(share, rel=0.06, abs=1e-3)


def test_kept_is_what_the_loss_keeps(data: speed.Problem) -> None:
    margin = speed.share_margins(data, 0.1)
    hidden, weight = data.leaves()
    _, stats = er.linear_thresholded_cross_entropy(hidden, weight, data.target, margin, stats=True)
    share, strips = speed.kept(data, margin)
    assert share == pytest.approx(float(stats.kept.sum()) / (70 * 500), abs=1e-4)
    assert share < strips <= 1
    logits = data.hidden @ data.weight.T
    mask = logits >= logits.gather(1, data.target[:, None]) - margin[:, None]
    by_hand = sum(bool(part.any()) for row in mask for part in row.split(128)) / (70 * 4)
    assert strips == pytest.approx(by_hand, abs=1e-2)
    assert speed.kept(data, 1.0)[0] < speed.kept(data, 4.0)[0] < 1
    assert speed.kept(data, math.inf) == (1.0, 1.0)


def test_clustered_data_gather_what_is_kept() -> None:
    found = {}
    for clustered in (False, True):
        data = speed.synthetic(SHAPE, clustered=clustered)
        logits = data.hidden @ data.weight.T
        least = logits.gather(1, data.target[:, None]) - speed.share_margins(data, 0.1)[:, None]
        mask = logits >= least
        tokens = mask.sum(1).sort(descending=True).values
        found[clustered] = mask[:, :100].sum() / mask.sum(), tokens[:7].sum() / mask.sum()
    assert found[True][0] > 0.35 > 0.25 > found[False][0]  # in the most frequent fifth of the rows
    assert found[True][1] > 0.3 > 0.2 > found[False][1]  # in the hardest tenth of the tokens


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, math.nan])
def test_an_impossible_share_is_refused(data: speed.Problem, share: float) -> None:
    with pytest.raises(ArgumentValueError, match="share: expected a number above 0"):
        speed.share_margins(data, share)


def gradients(loss: Any, data: speed.Problem) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = data.leaves()
    value = loss(hidden, weight)
    (2 * value).backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return value.detach(), hidden.grad, weight.grad


@pytest.mark.parametrize("name", ["chunked", "torch", "ours"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_compute_the_same(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(chunked.CHUNK, "cpu", 9 * SHAPE.vocab)
    data = speed.synthetic(SHAPE, dtype=dtype)
    made = speed.ours(data) if name == "ours" else speed.peer_ways(data, [name])
    if made[0].trouble:
        pytest.skip(made[0].trouble)
    exact = speed.Problem(data.hidden.double(), data.weight.double(), data.target, "")
    want = gradients(lambda x, w: F.cross_entropy(F.linear(x, w), data.target), exact)
    got = gradients(made[0].loss, data)
    limit = 1e-5 if dtype == torch.float32 else 2e-2
    for a, b in zip(got, want, strict=True):
        assert (a.double() - b).norm() < limit * b.norm()


def test_ours_by_margin_and_by_share(data: speed.Problem) -> None:
    ways = speed.ours(data, (math.inf, 2.0), (0.1,))
    assert [way.name for way in ways] == ["ours, margin inf", "ours, margin 2", "ours, 0.1 kept"]
    assert [way.margin for way in ways] == [math.inf, 2.0, None]
    assert ways[0].kept == 1
    assert 0 < ways[1].kept < 0.9
    assert ways[2].kept == pytest.approx(0.1, rel=0.05)


def test_what_is_missing_is_named(data: speed.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    liger, cce = speed.peer_ways(data, ["liger", "cce"])
    assert liger.trouble == "not installed: pip install liger-kernel, and a CUDA device"
    assert cce.trouble == "not installed: pip install cut-cross-entropy, and a CUDA device"
    assert not cce.dense
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: object())
    assert speed.peer_ways(data, ["cce"])[0].trouble == "needs a CUDA device"
    with pytest.raises(ArgumentValueError, match="peers: expected names of eager"):
        speed.peer_ways(data, ["quick"])


def test_a_peer_that_cannot_be_made_says_so(
    data: speed.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(F, "linear_cross_entropy", raising=False)
    (way,) = speed.peer_ways(data, ["torch"])
    assert way.trouble == "failed: RuntimeError: needs torch 2.13 or newer"
    assert way.loss is None


def test_peers_by_their_modules(data: speed.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Liger and CCE are called as they are: these stand in for them."""
    seen: dict[str, Any] = {}

    class Liger:
        @staticmethod
        def apply(x: Tensor, w: Tensor, y: Tensor, *rest: object) -> tuple[Tensor, None]:
            seen["liger"] = rest
            return F.cross_entropy(x @ w.T, y), None

    def cce(x: Tensor, w: Tensor, y: Tensor, **options: object) -> Tensor:
        seen["cce"] = options
        return F.cross_entropy(x @ w.T, y)

    modules = {
        "liger_kernel.ops.fused_linear_cross_entropy": {
            "LigerFusedLinearCrossEntropyFunction": Liger
        },
        "cut_cross_entropy": {"linear_cross_entropy": cce},
    }
    made = {name: type("module", (), dict(x)) for name, x in modules.items()}
    monkeypatch.setattr(peers.importlib, "import_module", made.get)
    made["cut_cross_entropy"].linear_cross_entropy = staticmethod(cce)  # type: ignore[attr-defined]
    for make in (peers._liger, peers._cce):
        assert torch.isfinite(make(data.target)(*data.leaves()))
    assert seen["liger"] == (None, None, -100, 0.0, 0.0, "mean", None, False, torch.float32)
    assert seen["cce"] == {"impl": "cce"}


def test_compile_is_given_products_in_float(
    data: speed.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def compiled(function: Any, **options: object) -> Any:
        given.update(options)
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    loss = peers._compiled(data.target)(*data.leaves())
    assert loss.item() == pytest.approx(peers._eager(data.target)(*data.leaves()).item())
    assert given == {"dynamic": False}


def constant(name: str, **options: Any) -> speed.Way:
    return speed.Way(name, lambda x, w: x.sum() + w.sum(), **options)


def test_rounds_rotate_and_two_do_not_count(data: speed.Problem) -> None:
    calls: list[str] = []

    def way(name: str) -> speed.Way:
        def loss(x: Tensor, w: Tensor) -> Tensor:
            assert x.grad is None
            calls.append(name)
            return x.sum() + w.sum()

        return speed.Way(name, loss)

    ways, steps = [way("a"), way("b")], []
    speed.measure(data, ways, CPU, repetitions=2, on_step=lambda *done: steps.append(done))
    assert "".join(calls) == "abbaabba"
    assert steps == [(i, 8) for i in range(1, 9)]
    assert [len(way.seconds) for way in ways] == [2, 2]
    assert ways[0].peak is None


@pytest.mark.parametrize("fails_at", [1, 4])
def test_a_failure_stops_nobody_else(data: speed.Problem, fails_at: int) -> None:
    calls = 0

    def fails(x: Tensor, w: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return x.sum() + w.sum()

    ways = [speed.Way("greedy", fails, peer=True), constant("modest")]
    speed.measure(data, ways, CPU, repetitions=3)
    assert calls == fails_at
    first, second = speed.results(ways)
    assert (first["trouble"], first["seconds"], first["ratio"]) == ("out of memory", None, None)
    assert second["ratio"] is None  # there is no peer left
    assert len(second["all_seconds"]) == 3


def test_time_that_runs_out(data: speed.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rounds.time, "monotonic", lambda: now[0])

    def loss(x: Tensor, w: Tensor) -> Tensor:
        now[0] += 1
        return x.sum() + w.sum()

    way = speed.Way("a", loss)
    with pytest.raises(speed.OutOfTime, match="stopped after 1 of 9 rounds"):
        speed.measure(data, [way], CPU, repetitions=9, deadline=2.5)
    way = speed.Way("a", loss)
    speed.measure(data, [way], CPU, repetitions=9, deadline=now[0] + 7.5)
    assert len(way.seconds) == 6


def test_ratios_compare_within_a_round() -> None:
    ways = [
        speed.Way("slow", None, peer=True, seconds=[4.0, 8.0, 4.0]),
        speed.Way("quick", None, peer=True, seconds=[2.0, 4.0, 2.0]),
        speed.Way("loose", None, peer=True, dense=False, seconds=[1.0, 2.0, 1.0]),
        speed.Way("ours", None, margin=math.inf, seconds=[1.0, 4.0, 1.0]),
    ]
    rows = speed.results(ways)
    assert [row["ratio"]["median"] for row in rows] == [2, 1, 0.5, 0.5]
    assert rows[3]["ratio"]["p80"] == pytest.approx(0.8)
    assert rows[3]["ratio_any"]["median"] == 1
    assert rows[3]["margin"] == "inf"
    assert speed.summary([3.0]) == {"median": 3, "p20": 3, "p80": 3}


def test_errors_become_a_few_words() -> None:
    assert peers.said(RuntimeError("\n first\nsecond")) == "failed: RuntimeError: first"
    assert peers.said(KeyError()) == "failed: KeyError"
    assert peers.said(RuntimeError("DefaultCPUAllocator: can't allocate memory")) == "out of memory"


def states(path: Path, **changes: Any) -> Path:
    tensors = {
        "hidden": torch.randn(6, 4, dtype=torch.bfloat16),
        "weight": torch.randn(9, 4).mul(9).round().to(torch.int8),
        "weight_scale": torch.rand(9),
        "target": torch.arange(6, dtype=torch.int32),
    } | changes
    save_file({name: x for name, x in tensors.items() if x is not None}, path)
    return path


def test_trained_states_are_read(tmp_path: Path) -> None:
    got = speed.read(states(tmp_path / "x.safetensors"), torch.float32, "cpu")
    assert got.shape == (6, 4, 9)
    assert got.data == "x"
    assert got.weight.abs().max() > 0
    assert got.target.dtype == torch.long
    plain = states(tmp_path / "y.safetensors", weight_scale=None)
    assert torch.equal(speed.read(plain, torch.float32, "cpu").weight.frac(), torch.zeros(9, 4))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": None}, "target missing"),
        ({"hidden": torch.zeros(6, 5)}, "do not fit together"),
        ({"target": torch.full((6,), 9)}, "do not fit together"),
    ],
)
def test_states_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FileError, match=words):
        speed.read(states(tmp_path / "x.safetensors", **changes), torch.float32, "cpu")
    with pytest.raises(FileError, match="cannot be read"):
        speed.read(tmp_path / "none.safetensors", torch.float32, "cpu")


def test_the_floor_falls_with_what_is_kept() -> None:
    floors = [speed.floor(SHAPE, share, 2, 1e9, 1e9) for share in (1.0, 0.5, 0.0)]
    assert floors[0] > floors[1] > floors[2] > 0
    assert speed.matrix_rate(CPU, torch.float32, "cpu", 32) > 0
    assert speed.copy_rate(CPU, "cpu", 1000) > 0


def test_a_deadline_that_is_past_measures_nothing(data: speed.Problem) -> None:
    with pytest.raises(speed.OutOfTime):
        speed.measure(data, [constant("a")], CPU, deadline=time.monotonic() - 1)


class _Event:
    """Stands in for a CUDA event; each is recorded two seconds after the one before."""

    now = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        _Event.now += 2000
        self.at = _Event.now

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, other: _Event) -> float:
        return other.at - self.at


def test_on_cuda_events_and_the_allocator_are_asked(
    data: speed.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins: dict[str, Any] = {
        "Event": _Event,
        "memory_allocated": lambda: 100,
        "max_memory_allocated": lambda: 100_000,
        **dict.fromkeys(("synchronize", "reset_peak_memory_stats", "empty_cache"), lambda: None),
    }
    for name, value in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, value)
    timer = speed.Timer("cpu")
    timer.cuda = True
    ways = [constant("a"), speed.Way("b", lambda x, w: torch.zeros(()))]  # b has no gradients
    speed.measure(data, ways, timer, repetitions=2)
    assert ways[0].seconds == [2, 2]
    assert ways[0].peak == 99_900 - data.hidden.nbytes - data.weight.nbytes
    assert ways[1].trouble.startswith("failed: RuntimeError")
    assert ways[1].peak is None
