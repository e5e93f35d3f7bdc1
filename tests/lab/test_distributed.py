"""Several processes: what each trains, what they say to each other, and what all must agree on."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from elbowroom.errors import ArgumentValueError
from elbowroom.lab import distributed
from elbowroom.lab.distributed import (
    ALONE,
    Onlooker,
    RankError,
    average,
    by_run,
    check_shared,
    flat,
    is_first,
    is_launched,
    joined,
    own_device,
    spread,
)
from elbowroom.lab.folder import Company, End, RunFolder
from tests.lab.toy import corpus, run

CPU = torch.device("cpu")
LAUNCHED = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.fixture
def launched(monkeypatch):
    """What ``torchrun`` tells the second of two processes."""
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)


# What each process trains


def test_runs_are_spread():
    assert spread([["a", "b", "c"]], 1) == [[["a", "b", "c"]]]
    assert spread([["a", "b", "c", "d"]], 2) == [[["a", "b"]], [["c", "d"]]]
    assert spread([["a"]], 3) == [[["a"]], [], []]
    assert spread([["a"], ["b"], ["c"]], 2) == [[["a"], ["c"]], [["b"]]]
    begun = spread([["a", "b", "c"], ["d", "e"]], 2, whole=lambda run: run == "a")
    assert begun == [[["a", "b", "c"], ["d"]], [["e"]]]


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), max_size=6), st.integers(1, 5), st.sets(st.integers(0, 5)))
def test_every_run_is_trained_once_and_loads_are_even(sizes, world, begun):
    populations = [[(p, i) for i in range(size)] for p, size in enumerate(sizes)]
    found = spread(populations, world, whole=lambda run: run[0] in begun)
    assert len(found) == world
    parts = [part for own in found for part in own]
    for p, members in enumerate(populations):
        own = sorted(part for part in parts if part[0][0] == p)
        assert [run for part in own for run in part] == members
        largest, least = max(map(len, own)), min(map(len, own))
        assert len(own) == 1 if p in begun else largest - least <= 1
    if not begun & set(range(len(sizes))):
        loads = [sum(map(len, own)) for own in found]
        assert max(loads) - min(loads) <= 1


def test_states_of_runs_as_one():
    states = [{"model.a/b": torch.ones(2), "c": torch.zeros(())}, {}, {"c": torch.tensor(3)}]
    one = flat(states)
    assert sorted(one) == ["0/c", "0/model.a/b", "2/c"]
    assert by_run(one, 3) == states
    assert by_run({}, 0) == []


SHARED = [
    ({"training": {"batch": 3}}, 2, "training.batch: expected a multiple of 2 processes .*got 3"),
    ({"training": {"batch": 6, "accumulate": 2}}, 2, r"times accumulate \(2\), got 6"),
    ({"training": {"parallel": "fsdp"}, "optimizer": {"name": "coupled_adamw"}}, 2, "matrices"),
    ({"training": {"parallel": "fsdp"}, "optimizer": {"center": True}}, 2, "optimizer.center"),
]


@pytest.mark.parametrize(("change", "world", "message"), SHARED)
def test_what_cannot_be_shared(change, world, message):
    with pytest.raises(ArgumentValueError, match=message):
        check_shared(run(**change), world)


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"batch": 8, "accumulate": 2}},
        {"optimizer": {"name": "coupled_adamw", "center": True}},
        {"training": {"parallel": "fsdp"}, "optimizer": {"name": "row_adamw"}},
    ],
)
def test_what_can_be_shared(change):
    check_shared(run(**change), 2)
    check_shared(run(**change), 4)


def test_an_onlooker_leaves_files_alone(tmp_path):
    config = run()
    company = Company(("run-i0-d0",), corpus().fingerprint)
    weights = {"x": torch.ones(2)}

    def write(folder, at):
        folder.begin(config, corpus().tokenizer, company)
        folder.append({"step": at})
        folder.settle_metrics()
        folder.forget_after(at)
        folder.save_end(End(at, -1, [], 1.0))
        folder.save_model(weights, at)
        folder.finish({"steps": at})
        folder.forget_state()

    write(Onlooker(tmp_path / "none"), 1)
    assert not (tmp_path / "none").exists()
    own, other = RunFolder(tmp_path / "run"), Onlooker(tmp_path / "run")
    own.begin(config, corpus().tokenizer, company)
    own.append({"step": 5})
    before = {path: path.stat() for path in tmp_path.rglob("*")}
    write(other, 1)
    assert {path: path.stat() for path in tmp_path.rglob("*")} == before
    assert other.company == company
    assert other.metrics() == [{"step": 5}]


def test_an_onlooker_knows_of_all_that_writes():
    methods = {name for name, x in vars(RunFolder).items() if inspect.isfunction(x)}
    reading = {"__init__", "check", "config", "metrics", "load_model"}
    assert methods - reading - {"remove"} == vars(Onlooker).keys() & methods


# Who this process is


def test_a_process_alone():
    assert not is_launched()
    assert is_first()
    with joined(CPU) as ranks:
        assert ranks is ALONE
    assert (ALONE.rank, ALONE.world, ALONE.is_first) == (0, 1, True)
    assert [ALONE.any(flag) for flag in (True, False)] == [True, False]
    ALONE.same("this", "text")
    x = object()
    assert ALONE.share(lambda: ({"x": x}, {})) == ({"x": x}, {})
    with ALONE.one_first():
        pass


@pytest.mark.usefixtures("launched")
def test_what_torchrun_sets(monkeypatch):
    assert is_launched()
    assert not is_first()
    monkeypatch.setenv("RANK", "0")
    assert is_first()
    monkeypatch.setenv("RANK", "1")
    for name in LAUNCHED:
        with monkeypatch.context() as patch:
            patch.delenv(name)
            assert not is_launched()
            assert is_first()
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not is_launched()


def test_devices_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert own_device() == own_device("cpu") == CPU


def test_each_process_has_its_own_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert own_device() == own_device("cuda") == torch.device("cuda")  # alone
    for name, value in LAUNCHED.items():
        monkeypatch.setenv(name, value)
    assert own_device() == torch.device("cuda:0")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_device() == own_device("cuda") == torch.device("cuda:1")
    assert own_device("cuda:0") == own_device(torch.device("cuda:0")) == torch.device("cuda:0")
    assert own_device("cpu") == CPU
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ArgumentValueError, match="got 2 GPUs; start at most 2 processes"):
        own_device()


# What processes say to each other


def test_averages_take_few_calls(monkeypatch):
    sent = []

    def others_have_three_times_as_much(x):
        sent.append((x.dtype, x.numel()))
        x *= 4

    monkeypatch.setattr(distributed, "BUCKET", 10)
    monkeypatch.setattr(dist, "all_reduce", others_have_three_times_as_much)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    wide = torch.arange(12.0).view(4, 3)
    kinds = [
        torch.ones(2, 2),
        torch.tensor(3.0),
        torch.ones(5),
        torch.ones(1),
        wide.T,
        torch.ones(0),
    ]
    kinds += [torch.ones(3, dtype=torch.float64), torch.full((2,), torch.nan)]
    expected = [2 * x for x in kinds]
    average(kinds)
    for x, twice in zip(kinds, expected, strict=True):
        torch.testing.assert_close(x, twice, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(wide, 2 * torch.arange(12.0).view(4, 3))  # in place, through views too
    single, double = torch.float32, torch.float64
    assert sent == [(single, 10), (single, 1), (single, 12), (single, 0), (double, 3), (single, 2)]
    average([])


@pytest.mark.parametrize("rank", [0, 1])
def test_words(pair, tmp_path, rank):
    first, second = pair.both("words", {"folder": str(tmp_path)}, rank=rank)
    assert (first.pop("ranks"), second.pop("ranks")) == ([0, 2, 0, True], [1, 2, 1, False])
    assert (first.pop("first"), second.pop("first")) == (True, False)
    assert first == second
    assert first["launched"]
    assert first["one"]
    assert first["any"] == [False, True, True, True]
    assert first["same"].startswith("this: the processes differ in it; start all with one command")
    assert first["share"] == [
        {"by": 0, "number": 0.1, "list": [1, "ä", None]},
        {
            "0/half": ["torch.bfloat16", [1.5, -2.0]],
            "0/large": ["torch.int64", 2**62 + 1],
            "1/empty": ["torch.float32", []],
            "1/flags": ["torch.bool", [[True, False]]],
        },
    ]
    assert (tmp_path / "order").read_text() == "01"
    assert first["average"] == [[[1.5] * 3] * 2, 3.0]
    assert first["after"].startswith("the processes have parted")
    assert first["left"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_group_of_the_callers(pair, tmp_path, fails):
    """It is left as it was; a process that fails and lives on keeps nobody waiting."""
    first, second = pair.both("meet", {"folder": str(tmp_path), "fails": fails}, rank=1)
    assert [found["ranks"] for found in (first, second)] == [[0, 2, True], [1, 2, False]]
    assert [found["first"] for found in (first, second)] == [True, False]
    assert [found["failed"] for found in (first, second)] == [fails, False]
    assert second.get("error") == ("RankError" if fails else None)
    for found in (first, second):
        assert found["launched"]
        assert found["total"] == 3


@pytest.fixture
def group_of_one(launched, monkeypatch):
    """Let a process that was told of another meet with nobody; what for is kept."""
    meet, given = dist.init_process_group, []

    def alone(backend):
        given.append(backend)
        meet("gloo", store=dist.HashStore(), rank=0, world_size=1)

    monkeypatch.setattr(dist, "init_process_group", alone)
    yield given
    assert not dist.is_initialized()


GONE = "[x/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:1: reset"


@pytest.mark.parametrize("error", [RuntimeError(GONE), dist.DistNetworkError("Read error")])
def test_errors_of_other_processes(group_of_one, error):
    with pytest.raises(RankError, match=r"^another process has ended, .*Read error"), joined(CPU):
        raise error
    assert group_of_one == ["gloo"]


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(
    "error", [RuntimeError("out of memory"), RankError("a/gloo/b"), KeyboardInterrupt()], ids=repr
)
def test_errors_of_our_own(error):
    with pytest.raises(type(error)) as caught, joined(CPU):
        raise error
    assert caught.value is error


def test_groups_on_cuda(group_of_one, monkeypatch):
    """Numbers by NCCL, words by gloo; after an error NCCL's group is not waited for."""
    device, chosen = torch.device("cuda:0"), []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    with joined(device) as ranks:
        assert ranks.any(True)
        assert dist.is_initialized()
    assert not dist.is_initialized()
    with pytest.raises(ZeroDivisionError), joined(device):
        raise ZeroDivisionError
    assert dist.is_initialized()
    dist.destroy_process_group()
    assert chosen == [device, device]
    assert group_of_one == ["cpu:gloo,cuda:nccl"] * 2
