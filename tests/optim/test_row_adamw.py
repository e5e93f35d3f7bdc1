from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import Parameter

from elbowroom.errors import ArgumentTypeError, ArgumentValueError
from elbowroom.optim import RowAdamW
from tests.optim.oracle import OneOptimizerPerRow, some_rows

OPTIONS = {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.3}
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def run(optimizer, weight, grads, marks=False):
    for grad in grads:
        weight.grad = grad.clone()
        if marks:
            optimizer.touch(weight, (grad != 0).any(-1))
        optimizer.step()


def test_first_step_by_hand():
    weight = Parameter(torch.tensor([[2.0, -1.0], [5.0, 5.0]], dtype=torch.float64))
    optimizer = RowAdamW([weight], lr=0.1, weight_decay=0.5, eps=0.0, rows=[weight])
    weight.grad = torch.tensor([[3.0, -4.0], [0.0, -0.0]], dtype=torch.float64)
    optimizer.step()
    # decay .95, and a first step is the learning rate times the gradient's sign
    expected = torch.tensor([[1.9 - 0.1, -0.95 + 0.1], [5.0, 5.0]], dtype=torch.float64)
    torch.testing.assert_close(weight.data, expected, **CLOSE)
    state = optimizer.state[weight]
    assert state["row_step"].tolist() == [1.0, 0.0]
    assert state["step"].item() == 1.0
    torch.testing.assert_close(state["exp_avg"][0].tolist(), [0.3, -0.4], **CLOSE)
    torch.testing.assert_close(state["exp_avg_sq"][0].tolist(), [0.009, 0.016], **CLOSE)
    assert state["exp_avg"][1].tolist() == state["exp_avg_sq"][1].tolist() == [0.0, 0.0]


def test_a_row_first_touched_late_moves_by_the_learning_rate():
    weight = Parameter(torch.zeros(2, 3))
    optimizer = RowAdamW([weight], lr=0.01, weight_decay=0.0, rows=[weight])
    run(optimizer, weight, [torch.tensor([[1.0], [0.0]]).expand(2, 3)] * 1000)
    run(optimizer, weight, [torch.tensor([[1.0], [7.0]]).expand(2, 3)])
    torch.testing.assert_close(weight[1].data, torch.full((3,), -0.01), rtol=1e-5, atol=0)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("share", [0.1, 0.4, 0.9, 0.97, 1.0])
@pytest.mark.parametrize("maximize", [False, True])
def test_equals_one_optimizer_per_row(share, marks, capturable, maximize):
    start = torch.randn(40, 6, dtype=torch.float64)
    weight = Parameter(start.clone())
    optimizer = RowAdamW(
        [weight], rows=[weight], capturable=capturable, maximize=maximize, **OPTIONS
    )
    oracle = OneOptimizerPerRow(start, maximize=maximize, **OPTIONS)
    grads = [some_rows((40, 6), share) for _ in range(7)]
    run(optimizer, weight, grads, marks)
    for grad in grads:
        oracle.step(grad)
    torch.testing.assert_close(weight.data, oracle.weight(), **CLOSE)
    assert torch.equal(optimizer.state[weight]["row_step"], oracle.counts())


@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)),
    share=st.floats(0, 1),
    catch_up=st.booleans(),
)
def test_both_ways_to_step_agree_on_odd_shapes(shape, share, catch_up):
    start = torch.randn(shape, dtype=torch.float64)
    ways = [Parameter(start.clone()) for _ in range(3)]
    grads = [some_rows(shape, share) for _ in range(4)]
    states = []
    for i, weight in enumerate(ways):
        optimizer = RowAdamW(
            [weight], rows=[weight], catch_up=catch_up, capturable=i == 1, **OPTIONS
        )
        run(optimizer, weight, grads, marks=i == 2)
        states.append(optimizer.state[weight])
    for weight, state in zip(ways[1:], states[1:], strict=True):
        torch.testing.assert_close(weight.data, ways[0].data, **CLOSE)
        for name, value in states[0].items():
            torch.testing.assert_close(state[name], value, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("fused", [None, False])
def test_with_all_rows_touched_it_is_adamw(dtype, fused):
    start = torch.randn(33, 17, dtype=dtype)
    mine, theirs = Parameter(start.clone()), Parameter(start.clone())
    optimizer = RowAdamW([mine], rows=[mine], fused=fused, **OPTIONS)
    reference = torch.optim.AdamW([theirs], **OPTIONS)
    grads = [torch.randn(33, 17, dtype=dtype) for _ in range(30)]
    run(optimizer, mine, grads)
    run(reference, theirs, grads)
    torch.testing.assert_close(mine.data, theirs.data)  # the dtype's own tolerance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_low_precision_computes_in_float32(dtype, capturable, share):
    start = torch.randn(20, 8).to(dtype)
    weight = Parameter(start.clone())
    optimizer = RowAdamW([weight], rows=[weight], fused=False, capturable=capturable)
    grad = some_rows((20, 8), share, torch.float32).to(dtype)
    run(optimizer, weight, [grad])
    exact = Parameter(start.float())
    run(RowAdamW([exact], rows=[exact]), exact, [grad.float()])
    assert torch.equal(weight.data, exact.data.to(dtype))
    assert optimizer.state[weight]["exp_avg"].dtype == dtype
    assert optimizer.state[weight]["row_step"].dtype == torch.float32


@pytest.mark.parametrize("capturable", [False, True])
def test_untouched_rows_keep_their_bits_whatever_they_hold(capturable):
    weight = Parameter(torch.randn(5, 3))
    optimizer = RowAdamW([weight], rows=[weight], capturable=capturable)
    run(optimizer, weight, [torch.randn(5, 3)])
    state = optimizer.state[weight]
    state["exp_avg"][1], state["exp_avg_sq"][1] = math.inf, math.nan
    with torch.no_grad():
        weight[1] = math.nan
    before = [x.clone() for x in (weight.data, state["exp_avg"], state["exp_avg_sq"])]
    grad = torch.randn(5, 3)
    grad[1] = grad[3] = 0.0
    run(optimizer, weight, [grad])
    for old, new in zip(before, (weight, state["exp_avg"], state["exp_avg_sq"]), strict=True):
        assert torch.equal(old[[1, 3]].view(torch.int32), new.data[[1, 3]].view(torch.int32))
        assert (old[[0, 2, 4]] != new[[0, 2, 4]]).all()


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("marks", [False, True])
def test_a_nan_row_counts_as_touched(capturable, marks):
    weight = Parameter(torch.ones(40, 3))
    optimizer = RowAdamW([weight], rows=[weight], capturable=capturable)
    grad = torch.zeros(40, 3)
    grad[1, 2] = math.nan
    run(optimizer, weight, [grad], marks)
    assert optimizer.state[weight]["row_step"].nonzero().flatten().tolist() == [1]
    assert weight[1, 2].isnan()
    assert weight[0].isfinite().all()


def test_learning_rate_zero_moves_nothing():
    for capturable in (False, True):
        weight = Parameter(torch.randn(4, 3))
        before = weight.detach().clone()
        optimizer = RowAdamW([weight], lr=0.0, rows=[weight], capturable=capturable)
        run(optimizer, weight, [some_rows((4, 3), 0.5, torch.float32)])
        assert torch.equal(weight.data, before)


@pytest.mark.parametrize("unequal", [False, True])
def test_saturated_counts_take_the_fused_way_and_stay_right(unequal):
    weight, slow = (Parameter(torch.ones(6, 4)) for _ in range(2))
    makers = [
        RowAdamW([w], betas=(0.5, 0.6), rows=[w], fused=fused)
        for w, fused in ((weight, None), (slow, False))
    ]
    grads = [torch.randn(6, 4) for _ in range(3)]
    for optimizer, w in zip(makers, (weight, slow), strict=True):
        run(optimizer, w, grads[:1])
        counts = torch.arange(6.0) * unequal + 100  # .6^100 is far below float32's resolution
        optimizer.state[w]["row_step"].copy_(counts)
        run(optimizer, w, grads[1:])
        assert torch.equal(optimizer.state[w]["row_step"], counts + 2)
    torch.testing.assert_close(weight.data, slow.data)


# Marks


def test_marks_add_up_and_are_used_once():
    weight = Parameter(torch.zeros(8, 2))
    optimizer = RowAdamW([weight], rows=[weight])
    weight.grad = torch.ones(8, 2)
    mask = torch.arange(8) == 0
    optimizer.touch(weight, mask)
    optimizer.touch(weight, torch.tensor([[2, 3]]))
    mask[:] = True  # the optimizer keeps a copy
    optimizer.step()
    assert optimizer.state[weight]["row_step"].tolist() == [1, 0, 1, 1, 0, 0, 0, 0]
    optimizer.step()
    assert optimizer.state[weight]["row_step"].tolist() == [2, 1, 2, 2, 1, 1, 1, 1]


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("marked", [slice(0, 4), slice(0, 9), [1, 8], [7]])
def test_marked_rows_without_gradient_stay(marked, capturable):
    weight = Parameter(torch.ones(10, 4))
    optimizer = RowAdamW([weight], rows=[weight], capturable=capturable)
    weight.grad = torch.zeros(10, 4)
    weight.grad[[1, 3]] = 1.0
    mask = torch.zeros(10, dtype=torch.bool)
    mask[marked] = True
    optimizer.touch(weight, mask)
    optimizer.step()
    moved = (weight != 1).any(-1)
    assert torch.equal(moved, mask & (weight.grad != 0).any(-1))


def test_marks_by_number_within_each_run():
    weight = Parameter(torch.zeros(2, 4, 3))
    optimizer = RowAdamW([weight], rows=[weight])
    weight.grad = torch.ones(2, 4, 3)
    optimizer.touch(weight, torch.tensor([[[0, 0]], [[3, 1]]], dtype=torch.int32))
    optimizer.step()
    assert optimizer.state[weight]["row_step"].tolist() == [[1, 0, 0, 0], [0, 1, 0, 1]]


def test_tied_weights_marked_from_both_ends_equal_a_search():
    results = []
    for marks in (False, True):
        torch.manual_seed(1)
        weight = Parameter(torch.randn(50, 4, dtype=torch.float64))
        optimizer = RowAdamW([weight], rows=[weight])
        for _ in range(3):
            ids, kept = torch.randint(50, (3,)), torch.rand(50) < 0.1
            hidden = weight[ids].sum(0)
            loss = (weight @ hidden).where(kept, 0.0).sum()
            optimizer.zero_grad()
            loss.backward()
            if marks:
                optimizer.touch(weight, kept)
                optimizer.touch(weight, ids)
            optimizer.step()
        results.append(weight.data)
    assert torch.equal(*results)


# Catching up


def dense_without_drift(start, grads, rates, betas, eps, weight_decay):
    """AdamW, in a loop, but for the drift: a row without gradient decays and does not move."""
    p, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for t, (g, lr) in enumerate(zip(grads, rates, strict=True), 1):
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        p = p * (1 - lr * weight_decay)
        move = lr * (m / (1 - betas[0] ** t)) / ((v / (1 - betas[1] ** t)).sqrt() + eps)
        p = torch.where((g != 0).any(-1, keepdim=True), p - move, p)
    return p, m, v


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("share", [0.2, 0.8])
def test_catch_up_is_adamw_without_the_drift(share, marks, capturable):
    start = torch.randn(20, 5, dtype=torch.float64)
    grads = [some_rows((20, 5), share) for _ in range(12)]
    rates = [0.05 / (1 + i) for i in range(12)]
    weight = Parameter(start.clone())
    optimizer = RowAdamW([weight], rows=[weight], catch_up=True, capturable=capturable, **OPTIONS)
    for grad, lr in zip(grads, rates, strict=True):
        optimizer.param_groups[0]["lr"] = lr
        run(optimizer, weight, [grad], marks)
    optimizer.settle()
    options = {name: OPTIONS[name] for name in ("betas", "eps", "weight_decay")}
    p, m, v = dense_without_drift(start, grads, rates, **options)
    state = optimizer.state[weight]
    torch.testing.assert_close(weight.data, p, **CLOSE)
    torch.testing.assert_close(state["exp_avg"], m, **CLOSE)
    torch.testing.assert_close(state["exp_avg_sq"], v, **CLOSE)
    assert (state["row_step"] == 12).all()
    assert (state["row_decay"] == 1).all()


def test_catch_up_without_momentum_is_adamw():
    start = torch.randn(20, 5, dtype=torch.float64)
    mine, theirs = Parameter(start.clone()), Parameter(start.clone())
    options = {**OPTIONS, "betas": (0.0, 0.9)}
    optimizer = RowAdamW([mine], rows=[mine], catch_up=True, **options)
    reference = torch.optim.AdamW([theirs], **options)
    grads = [some_rows((20, 5), 0.3) for _ in range(9)]
    run(optimizer, mine, grads)
    run(reference, theirs, grads)
    optimizer.settle()
    torch.testing.assert_close(mine.data, theirs.data, **CLOSE)


def test_catch_up_with_all_rows_touched_takes_the_fused_way():
    start = torch.randn(20, 5)
    mine, theirs = Parameter(start.clone()), Parameter(start.clone())
    optimizer = RowAdamW([mine], rows=[mine], catch_up=True, **OPTIONS)
    grads = [torch.randn(20, 5) for _ in range(5)]
    run(optimizer, mine, grads)
    run(torch.optim.AdamW([theirs], **OPTIONS), theirs, grads)
    torch.testing.assert_close(mine.data, theirs.data)
    assert (optimizer.state[mine]["row_decay"] == 1).all()


def test_catch_up_switched_on_later_counts_from_then():
    weight = Parameter(torch.ones(2, 2))
    optimizer = RowAdamW([weight], rows=[weight], lr=0.1, weight_decay=1.0)
    rows = torch.tensor([[1.0], [0.0]]).expand(2, 2)
    run(optimizer, weight, [rows] * 3)
    optimizer.param_groups[0]["catch_up"] = True
    run(optimizer, weight, [rows])
    optimizer.settle()
    torch.testing.assert_close(weight[1].data, torch.full((2,), 0.9))
    assert optimizer.state[weight]["row_step"].tolist() == [4, 4]


def test_settle_does_not_round_a_decay_close_to_one():
    weight = Parameter(torch.full((2, 2), 1.0, dtype=torch.bfloat16))
    options = {"lr": 1e-3, "weight_decay": 1.0, "catch_up": True}
    optimizer = RowAdamW([weight], rows=[weight], **options)
    run(optimizer, weight, [torch.zeros(2, 2, dtype=torch.bfloat16)] * 5)
    optimizer.settle()
    assert torch.equal(weight.data, torch.full((2, 2), 0.999**5).bfloat16())


def test_settle_leaves_groups_that_do_not_catch_up():
    weight = Parameter(torch.ones(2, 2))
    optimizer = RowAdamW([weight], rows=[weight])
    optimizer.settle()
    run(optimizer, weight, [torch.zeros(2, 2)])
    optimizer.settle()
    assert (weight == 1).all()


# Numbers a run


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("share", [0.4, 1.0])
def test_runs_with_numbers_of_their_own_equal_runs_alone(share, catch_up, capturable):
    start = torch.randn(3, 9, 4, dtype=torch.float64)
    lr, decay = torch.tensor([0.1, 0.01, 0.0]), torch.tensor([0.0, 0.3, 1.0])
    grads = [some_rows((3, 9, 4), share) for _ in range(5)]
    both = Parameter(start.clone())
    options = {"catch_up": catch_up, "capturable": capturable}
    together = RowAdamW([both], lr=lr.double(), weight_decay=decay.double(), rows=[both], **options)
    run(together, both, grads)
    for r in range(3):
        alone = Parameter(start[r].clone())
        optimizer = RowAdamW(
            [alone],
            lr=float(lr.double()[r]),
            weight_decay=float(decay.double()[r]),
            rows=[alone],
            **options,
        )
        run(optimizer, alone, [grad[r] for grad in grads])
        torch.testing.assert_close(both[r].data, alone.data, **CLOSE)


# Memory layouts


@pytest.mark.parametrize("share", [0.3, 1.0])
@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0), (0, 2, 1)])
def test_any_memory_layout(order, share):
    start = torch.randn(4, 5, 6, dtype=torch.float64)
    plain = Parameter(start.clone())
    strided = Parameter(start.permute(order).contiguous().permute(order))
    assert not strided.is_contiguous()
    grads = [some_rows((4, 5, 6), share) for _ in range(4)]
    for weight in (plain, strided):
        run(RowAdamW([weight], rows=[weight], **OPTIONS), weight, grads)
    torch.testing.assert_close(strided.data, plain.data, **CLOSE)


@pytest.mark.parametrize("width", [1, 3, 4, 64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gathering_at_any_width_and_alignment(width, dtype):
    start = torch.randn(300, width, dtype=dtype)
    storage = torch.zeros(300 * width + 1, dtype=dtype)
    aligned, shifted = Parameter(start.clone()), Parameter(storage[1:].view(300, width))
    with torch.no_grad():
        shifted.copy_(start)
    grads = [some_rows((300, width), 0.2, dtype) for _ in range(3)]
    oracle = OneOptimizerPerRow(start)
    for grad in grads:
        oracle.step(grad)
    for weight in (aligned, shifted):
        run(RowAdamW([weight], rows=[weight]), weight, grads)
        torch.testing.assert_close(weight.data, oracle.weight())


def test_several_blocks(monkeypatch):
    from elbowroom.optim import masked_step, touched, touched_step

    start = torch.randn(50, 4, dtype=torch.float64)
    grads = [some_rows((50, 4), share) for share in (0.3, 0.6, 1.0, 1.0)]
    whole = Parameter(start.clone())
    run(RowAdamW([whole], rows=[whole]), whole, grads)
    for module, name in (
        (masked_step, "MASKED"), (touched, "BLOCK"), (touched_step, "GATHERED"),
        (touched_step, "STRETCH"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 12)
    for capturable in (False, True):
        cut = Parameter(start.clone())
        run(RowAdamW([cut], rows=[cut], capturable=capturable), cut, grads)
        torch.testing.assert_close(cut.data, whole.data, **CLOSE)


@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("block", [8, 2**18])
def test_marks_of_rows_without_a_gradient_equal_a_search(monkeypatch, block, catch_up):
    from elbowroom.optim import touched_step

    monkeypatch.setattr(touched_step, "GATHERED", block)
    marks = [torch.rand(60) < 0.3 for _ in range(5)] + [torch.arange(60) < 20]  # a stretch too
    grads = [some_rows((60, 4), 0.5) * mark[:, None] for mark in marks]
    states = []
    for marked in (False, True):
        weight = Parameter(torch.linspace(-1, 1, 240, dtype=torch.float64).view(60, 4))
        optimizer = RowAdamW([weight], rows=[weight], catch_up=catch_up, **OPTIONS)
        for grad, mark in zip(grads, marks, strict=True):
            weight.grad = grad.clone()
            if marked:
                optimizer.touch(weight, mark)
            optimizer.step()
        states.append({"weight": weight.data, **optimizer.state[weight]})
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], **CLOSE)  # stretches round otherwise


# Saving and loading


def test_adamw_state_loads_with_every_row_at_step():
    start = torch.randn(6, 3, dtype=torch.float64)
    grads = [torch.randn(6, 3, dtype=torch.float64) for _ in range(8)]
    theirs = Parameter(start.clone())
    reference = torch.optim.AdamW([theirs], **OPTIONS)
    run(reference, theirs, grads[:5])
    mine = Parameter(theirs.detach().clone())
    optimizer = RowAdamW([mine], rows=[mine], catch_up=True)
    optimizer.load_state_dict(copy.deepcopy(reference.state_dict()))
    assert optimizer.state[mine]["row_step"].tolist() == [5.0] * 6
    assert optimizer.param_groups[0]["lr"] == OPTIONS["lr"]
    assert optimizer.param_groups[0]["catch_up"] is True
    run(reference, theirs, grads[5:])
    run(optimizer, mine, grads[5:])
    torch.testing.assert_close(mine.data, theirs.data, **CLOSE)


def test_adamw_loads_the_state():
    mine = Parameter(torch.randn(6, 3, dtype=torch.float64))
    optimizer = RowAdamW([mine], rows=[mine], **OPTIONS)
    run(optimizer, mine, [torch.randn(6, 3, dtype=torch.float64)] * 3)
    theirs = Parameter(mine.detach().clone())
    reference = torch.optim.AdamW([theirs])
    reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    grad = torch.randn(6, 3, dtype=torch.float64)
    run(reference, theirs, [grad])
    run(optimizer, mine, [grad])
    torch.testing.assert_close(mine.data, theirs.data, **CLOSE)


@pytest.mark.parametrize("catch_up", [False, True])
@pytest.mark.parametrize("way", ["state_dict", "deepcopy"])
def test_a_resumed_run_has_the_same_bits(way, catch_up):
    weight = Parameter(torch.randn(20, 4, dtype=torch.bfloat16))
    optimizer = RowAdamW([weight], rows=[weight], catch_up=catch_up)
    grads = [some_rows((20, 4), 0.5, torch.bfloat16) for _ in range(6)]
    run(optimizer, weight, grads[:3])
    optimizer.state[weight]["row_step"][0] = 1001.0  # which bfloat16 does not know
    optimizer.state[weight]["step"].fill_(1003.0)
    if way == "deepcopy":
        resumed = copy.deepcopy(optimizer)
        again = resumed.param_groups[0]["params"][0]
        assert again is not weight
    else:
        again = Parameter(weight.detach().clone())
        resumed = RowAdamW([again], rows=[again])
        resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    run(optimizer, weight, grads[3:])
    run(resumed, again, grads[3:])
    assert torch.equal(weight, again)
    for name, value in optimizer.state[weight].items():
        assert torch.equal(value, resumed.state[again][name])


def test_loading_respects_hooks_and_old_steps():
    weight = Parameter(torch.ones(2, 2))
    optimizer = RowAdamW([weight], rows=[weight])
    optimizer.register_load_state_dict_pre_hook(
        lambda _, loaded: {**loaded, "state": {0: {**loaded["state"][0], "step": 7}}}
    )
    theirs = torch.optim.AdamW([Parameter(torch.ones(2, 2))])
    run(theirs, theirs.param_groups[0]["params"][0], [torch.ones(2, 2)])
    optimizer.load_state_dict(theirs.state_dict())
    assert optimizer.state[weight]["row_step"].tolist() == [7.0, 7.0]
    run(optimizer, weight, [torch.ones(2, 2)])
    assert optimizer.state[weight]["step"].item() == 8.0


# Bad input


def make(shape=(4, 3), **options):
    weight = Parameter(torch.ones(shape))
    return weight, RowAdamW([weight], **{"rows": [weight], **options})


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("error", "match", "rows"),
    [
        (ArgumentTypeError, r"^rows: .*boolean|^rows: expected a tensor,", [0, 1]),
        (ArgumentValueError, r"^rows: expected shape \(4,\)", torch.ones(3, dtype=torch.bool)),
        (ArgumentTypeError, "^rows: expected a tensor of integers", torch.ones(4)),
        (ArgumentValueError, "^rows: expected numbers from 0 to 3", torch.tensor([4])),
        (ArgumentValueError, "^rows: expected numbers from 0 to 3", torch.tensor([-100])),
        (ArgumentValueError, "^rows: expected a tensor on cpu", torch.ones(4, device="meta")),
    ],
)
def test_bad_marks(error, match, rows):
    weight, optimizer = make()
    with pytest.raises(error, match=match):
        optimizer.touch(weight, rows)


def test_bad_marks_of_runs_and_parameters():
    weight, optimizer = make((2, 4, 3))
    with pytest.raises(ArgumentValueError, match=r"^rows: expected row numbers \[2, '...'\]"):
        optimizer.touch(weight, torch.tensor([0, 1, 2]))
    with pytest.raises(ArgumentValueError, match=r"^param: expected one of the parameters"):
        optimizer.touch(Parameter(torch.ones(4, 3)), torch.tensor([0]))


def test_bad_states():
    weight, optimizer = make()
    other = torch.optim.AdamW([Parameter(torch.ones(4, 3))], amsgrad=True)
    with pytest.raises(ArgumentValueError, match=r"^state_dict: expected a state without amsgrad"):
        optimizer.load_state_dict(other.state_dict())
    run(optimizer, weight, [torch.ones(4, 3)])
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["row_step"] = torch.ones(5)
    with pytest.raises(ArgumentValueError, match=r"^state_dict's row_step"):
        optimizer.load_state_dict(state)


@pytest.mark.usefixtures("unchecked")
def test_bad_catch_up():
    with pytest.raises(ArgumentTypeError, match=r"^catch_up: expected True or False"):
        make(catch_up=1)
