"""The evaluation against a naive loop and scikit-learn."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import top_k_accuracy_score
from torch._subclasses.fake_tensor import FakeTensorMode

from elbowroom import checks
from elbowroom.metrics import Evaluation, evaluation

V, N, D = 11, 37, 6
TEMPERATURES = [0.25, 0.5, 1.0, 1.7]


def batch(n=N, dtype=torch.float64):
    torch.manual_seed(n)
    z = 3 * torch.randn(n, V, dtype=dtype)
    return z, torch.randint(V, (n,))


def linear(n=N, dtype=torch.float64):
    torch.manual_seed(n)
    h, w = torch.randn(n, D, dtype=dtype), torch.randn(V, D, dtype=dtype)
    return h, w, torch.randint(V, (n,))


def close(a, b, **options):
    torch.testing.assert_close(a, b, **options)


def naive(z, y):
    """Every score, with loops and cross_entropy, for float64 logits without ties."""
    p, order = z.softmax(-1), z.argsort(-1, descending=True)
    rank = (order == y[:, None]).float().argmax(-1).double() + 1
    confidence, choice = p.max(-1)
    error = 0.0
    for b in range(15):
        inside = (confidence > b / 15) & (confidence <= (b + 1) / 15)
        if inside.any():
            gap = (choice == y)[inside].double().mean() - confidence[inside].mean()
            error += inside.double().mean() * gap.abs()
    return {
        "tokens": torch.tensor(float(len(y)), dtype=torch.float64),
        "nll": F.cross_entropy(z, y),
        "ppl": F.cross_entropy(z, y).exp(),
        "accuracy": (rank == 1).double().mean(),
        "mrr": (1 / rank).mean(),
        "rank": rank.mean(),
        "calibration_error": error,
    }


def compare(scores, z, y):
    for name, value in naive(z, y).items():
        close(getattr(scores, name), value)
    for k, value in scores.recall.items():
        expected = top_k_accuracy_score(y, z, k=k, labels=range(V))
        assert value.item() == pytest.approx(expected)
    for t in TEMPERATURES:
        close(scores.nll_at(t), F.cross_entropy(z / t, y))
        close(scores.ppl_at(t), F.cross_entropy(z / t, y).exp())


def test_everything_against_a_naive_loop(monkeypatch):
    monkeypatch.setattr(evaluation, "LOGITS_AT_ONCE", 5 * V)  # chunks of 5 tokens, the last of 2
    found = Evaluation(V, temperatures=TEMPERATURES, recall=(1, 2, 5))
    z, y = batch()
    found.update_logits(z[:20].view(4, 5, V), y[:20].view(4, 5))
    found.update_logits(z[20:], y[20:])
    compare(found.result(), z, y)


def test_groups_bins_and_their_crossing():
    bins = torch.arange(V) % 3
    found = Evaluation(V, groups=("HR", "LR"), bin_of_token=bins, temperatures=TEMPERATURES)
    z, y = batch(200)
    group = torch.randint(2, (200,))
    for part in torch.arange(200).split(64):
        found.update_logits(z[part], y[part], group=group[part])
    result = found.result()
    compare(result, z, y)
    for g, name in enumerate(("HR", "LR")):
        compare(result.groups[name], z[group == g], y[group == g])
        for b in range(3):
            mine = (group == g) & (bins[y] == b)
            compare(result.groups[name].bins[b], z[mine], y[mine])
    for b in range(3):
        compare(result.bins[b], z[bins[y] == b], y[bins[y] == b])
    assert result.groups["HR"].groups == {}


@pytest.mark.parametrize(
    "options", [{}, {"logit_scale": 0.46}, {"softcap": 4.0, "logit_scale": 2.0}, {"bias": True}]
)
def test_hidden_and_weight_give_what_logits_give(options, monkeypatch):
    h, w, y = linear()
    y[::4] = -100
    if "bias" in options:
        options = {"bias": torch.randn(V, dtype=h.dtype)}
    z = F.linear(h, w, options.get("bias"))
    if "softcap" in options:
        z = 4.0 * torch.tanh(z / 4.0)
    z = z * options.get("logit_scale", 1.0)
    one, other = (Evaluation(V, temperatures=TEMPERATURES) for _ in range(2))
    one.update_logits(z, y)
    monkeypatch.setattr(evaluation, "LOGITS_AT_ONCE", 1)
    other.update(h, w, y, **options)
    close(one.sums, other.sums)
    compare(other.result(), z[y >= 0], y[y >= 0])


def test_logit_scale_of_logits():
    z, y = batch()
    found = Evaluation(V, temperatures=None)
    found.update_logits(z, y, logit_scale=0.5)
    close(found.result().nll, F.cross_entropy(0.5 * z, y))


def test_shift_moves_targets_and_groups():
    h, w, _ = linear(24)
    h, y = h.view(4, 6, D), torch.randint(V, (4, 6))
    group = torch.randint(2, (4, 6))
    one, other = (Evaluation(V, groups=2, temperatures=None) for _ in range(2))
    one.update(h, w, y, group=group, shift=1)
    other.update(h[:, :-1], w, y[:, 1:], group=group[:, 1:])
    close(one.sums, other.sums)
    assert one.result().tokens == 20


def test_runs_are_evaluated_apart(monkeypatch):
    monkeypatch.setattr(evaluation, "LOGITS_AT_ONCE", 3 * V * 4)
    h, w = torch.randn(3, 2, 5, D), torch.randn(3, V, D)
    y, group = torch.randint(V, (3, 2, 5)), torch.randint(2, (3, 2, 5))
    y[1, 0, :3] = -100
    options = {"groups": 2, "temperatures": TEMPERATURES, "bin_of_token": torch.arange(V) % 2}
    together, logits = (Evaluation(V, runs=3, **options) for _ in range(2))
    together.update(h, w, y, group=group)
    logits.update_logits(torch.einsum("rbtd,rvd->rbtv", h, w), y, group=group)
    close(together.sums, logits.sums, rtol=1e-5, atol=1e-5)
    result = together.result()
    assert result.best_temperature.shape == (3,)
    for r in range(3):
        alone = Evaluation(V, **options)
        alone.update(h[r], w[r], y[r], group=group[r])
        close(together.sums[r], alone.sums[0], rtol=1e-5, atol=1e-5)
        close(result.ppl_at(0.5)[r], alone.result().ppl_at(0.5), rtol=1e-5, atol=1e-5)
        mine = result.groups[1].calibration_error[r]
        close(mine, alone.result().groups[1].calibration_error, rtol=1e-5, atol=1e-5)
    each = torch.tensor([0.25, 1.0, 1.7])
    expected = torch.stack([result.nll_at(float(t))[r] for r, t in enumerate(each)])
    close(result.nll_at(each), expected)


def test_ignored_tokens_may_be_anything():
    z, y = batch()
    z[3], y[3] = torch.nan, -7
    z[8], y[8] = torch.inf, -7
    group = torch.zeros(N, dtype=torch.long)
    group[3] = 99
    found = Evaluation(V, groups=1, temperatures=TEMPERATURES, ignore_index=-7)
    found.update_logits(z, y, group=group)
    compare(found.result(), z[y >= 0], y[y >= 0])


def test_a_nan_stays_in_its_group():
    z, y = batch(4)
    z[0, 2] = torch.nan
    found = Evaluation(V, groups=2, temperatures=TEMPERATURES)
    found.update_logits(z, y, group=torch.tensor([0, 0, 1, 1]))
    result = found.result()
    broken, fine = result.groups[0], result.groups[1]
    for name in ("nll", "accuracy", "mrr", "calibration_error", "best_temperature", "best_ppl"):
        assert getattr(broken, name).isnan(), name
        assert getattr(fine, name).isfinite(), name


def test_empty_groups_are_nan():
    table = torch.ones(V, dtype=torch.long)
    found = Evaluation(V, groups=2, byte_lengths=table, group_of_token=table)
    z, y = batch()
    found.update_logits(z, y, group=0)
    empty = found.result().groups[1]
    assert empty.tokens == 0
    for name in ("nll", "ppl", "accuracy", "mrr", "rank", "calibration_error", "bits_per_byte"):
        assert getattr(empty, name).isnan(), name
    for value in (empty.foreign_mass, empty.best_temperature, empty.best_ppl, empty.nll_at(1.0)):
        assert value.isnan()
    assert Evaluation(V).result().nll.isnan()


def test_no_tokens_in_a_batch():
    found = Evaluation(V)
    found.update_logits(torch.zeros(0, V), torch.zeros(0, dtype=torch.long))
    found.update(torch.zeros(2, 0, D), torch.zeros(V, D), torch.zeros(2, 0, dtype=torch.long))
    assert found.result().tokens == 0


def test_best_temperature_and_one_fitted_on_held_out_text():
    z, y = batch(300)
    z = z + 6 * F.one_hot(y, V)
    held_out, test = Evaluation(V), Evaluation(V)
    held_out.update_logits(z[:150], y[:150])
    test.update_logits(z[150:], y[150:])
    fitted, result = held_out.result().best_temperature, test.result()
    grid = torch.arange(1, 201).double() / 100
    nll = torch.stack([F.cross_entropy(z[:150] / t, y[:150]) for t in grid])
    assert fitted.item() == pytest.approx(grid[nll.argmin()].item())
    close(held_out.result().best_ppl, nll.min().exp())
    close(result.ppl_at(fitted), F.cross_entropy(z[150:] / fitted, y[150:]).exp())
    assert result.ppl_at(fitted) >= result.best_ppl
    assert result.nll_at(torch.tensor(torch.nan)).isnan()


def test_bits_per_byte_by_hand():
    lengths = torch.tensor([1, 3, 0, 2])
    found = Evaluation(4, byte_lengths=lengths, temperatures=[1.0, 2.0])
    found.update_logits(torch.zeros(3, 4), torch.tensor([1, 2, 3]))  # 3 tokens of 2 bits, 5 bytes
    result = found.result()
    close(result.bits_per_byte, torch.tensor(6 / 5, dtype=torch.float64))
    close(result.bits_per_byte_at(2.0), torch.tensor(6 / 5, dtype=torch.float64))
    assert result.bytes == 5
    plain = Evaluation(4)
    plain.update_logits(torch.zeros(1, 4), torch.tensor([0]))
    assert plain.result().bits_per_byte is None
    assert plain.result().bits_per_byte_at(1.0) is None
    assert plain.result().foreign_mass is None


def test_foreign_mass_leaves_out_shared_targets():
    z = torch.tensor([1.0, 2.0, 3.0, 4.0]).log().expand(4, 4)
    found = Evaluation(4, group_of_token=torch.tensor([0, 0, 1, -1]), temperatures=None)
    found.update_logits(z, torch.tensor([0, 1, 2, 3]))
    close(found.result().foreign_mass, torch.tensor(0.3, dtype=torch.float64), rtol=1e-6, atol=0)


def test_ties_in_an_evaluation():
    found = Evaluation(V, recall=(1, 3))
    found.update_logits(torch.full((5, V), -2.0), torch.arange(5))
    result = found.result()
    assert result.accuracy.item() == pytest.approx(1 / V)
    assert result.recall[3].item() == pytest.approx(3 / V)
    assert result.mrr.item() == pytest.approx(2 / (V + 1))
    assert result.calibration_error.item() == pytest.approx(0, abs=1e-7)


def test_reliability_bins_close_on_the_right():
    confidence = torch.tensor([0.5, 0.6, 0.7, 0.99])
    z = torch.stack((confidence, 1 - confidence), -1).log()
    found = Evaluation(2, calibration_bins=4, temperatures=None)
    found.update_logits(z, torch.tensor([0, 1, 0, 0]))
    reliability = found.result().reliability
    assert reliability.tokens.tolist() == [0, 1, 2, 1]
    assert reliability.accuracy[1:].tolist() == [0.5, 0.5, 1]
    expected = torch.tensor([torch.nan, 0.5, (0.6 + 0.7) / 2, 0.99], dtype=torch.float64)
    close(reliability.confidence, expected, equal_nan=True, rtol=1e-6, atol=0)


def test_merge_is_one_evaluation_of_everything():
    z, y = batch()
    whole, left, right = (Evaluation(V, groups=2, bin_of_token=torch.arange(V)) for _ in range(3))
    whole.update_logits(z, y, group=1)
    left.update_logits(z[:9], y[:9], group=1)
    right.update_logits(z[9:], y[9:], group=1)
    left.merge(right)
    close(left.sums, whole.sums)
    before = left.result()
    left.update_logits(z, y, group=0)
    assert before.tokens == N  # a result does not change with later updates


def test_autocast_computes_logits_in_float32():
    h, w, y = linear(dtype=torch.float32)
    under, outside = (Evaluation(V, temperatures=None) for _ in range(2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under.update(h, w, y)
    outside.update(h.bfloat16(), w.bfloat16(), y)
    close(under.sums, outside.sums, rtol=0, atol=0)


def test_update_keeps_no_graph():
    h, w, y = linear()
    found = Evaluation(V)
    found.update(h.requires_grad_(), w.requires_grad_(), y)
    assert not found.sums.requires_grad


def test_to_dict_is_plain():
    found = Evaluation(V, groups=("a", "b"), temperatures=[0.5, 1.0], bin_of_token=torch.arange(V))
    z, y = batch()
    found.update_logits(z, y, group=torch.arange(N) % 2)
    record = found.result().to_dict()
    assert record["ppl"] == found.result().ppl.item()
    assert record["temperatures"] == [0.5, 1.0]
    assert set(record["groups"]) == {"a", "b"}
    assert len(record["groups"]["a"]["bins"]) == V
    assert record["recall"]["5"] == found.result().recall[5].item()
    assert len(record["reliability"]["tokens"]) == 15
    assert "bits_per_byte" not in record
    none = Evaluation(V, temperatures=None)
    none.update_logits(z, y)
    assert "best_ppl" not in none.result().to_dict()


def test_logits_of_few_tokens_exist_at_a_time(monkeypatch):
    monkeypatch.setattr(evaluation, "LOGITS_AT_ONCE", 4 * V)
    shapes = []
    of = evaluation.Softmax.of
    monkeypatch.setattr(evaluation.Softmax, "of", lambda z: (shapes.append(z.shape), of(z))[1])
    h, w, y = linear()
    Evaluation(V).update(h, w, y)
    assert shapes == [(1, 4, V)] * (N // 4) + [(1, N % 4, V)]


def test_an_update_never_waits_for_the_device(monkeypatch):
    # on a GPU these checks are asynchronous; on a CPU they read a value
    monkeypatch.setattr(checks, "all_true", lambda *_: None)
    found = Evaluation(
        V,
        groups=2,
        bin_of_token=torch.arange(V),
        group_of_token=torch.arange(V) % 2,
        byte_lengths=torch.arange(V),
    )
    with FakeTensorMode():  # to read a value of a fake tensor is an error
        found._sums = torch.zeros(found.sums.shape, dtype=torch.float64)
        found._tables = {name: torch.zeros(V, dtype=torch.long) for name in found._tables}
        h, w = torch.zeros(N, D), torch.zeros(V, D)
        y = group = torch.zeros(N, dtype=torch.long)
        found.update(h, w, y, group=group, softcap=3.0)
        found.update_logits(torch.zeros(N, V), y, group=1)
    assert found.sums.shape[-1] > 200
