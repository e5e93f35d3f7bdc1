"""The Triton backend without a GPU: interpreted, compiled, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import elbowroom as er
from elbowroom.errors import ArgumentValueError, BackendError
from elbowroom.losses import fused
from elbowroom.losses.kernels import settings
from tests.kernels import run_tests


def test_interpreted():
    run_tests("tests/losses/fused_interpreted.py", TRITON_INTERPRET="1")


def test_compiled_for_gpus_that_are_not_here(tmp_path):
    run_tests("tests/losses/fused_compiled.py", TRITON_CACHE_DIR=str(tmp_path))


def call(dtype=torch.float32):
    hidden, weight = torch.zeros(1, 2, dtype=dtype), torch.zeros(3, 2, dtype=dtype)
    return er.linear_thresholded_cross_entropy(
        hidden, weight, torch.tensor([0]), 1.0, backend="triton"
    )


def test_where_it_cannot_run(monkeypatch):
    with pytest.raises(BackendError, match="the tensors are on cpu, not on a GPU; pass 'auto'"):
        call()
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    with pytest.raises(BackendError, match=r"torch\.float64 is none of float32, bfloat16"):
        call(torch.float64)
    monkeypatch.setattr(fused, "HAS_TRITON", False)
    with pytest.raises(BackendError, match="Triton is not installed; pass 'auto'"):
        call()


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "much"])
def test_a_budget_that_is_none(text, monkeypatch):
    monkeypatch.setenv("ELBOWROOM_LOGITS_MIB", text)
    with pytest.raises(ArgumentValueError, match="ELBOWROOM_LOGITS_MIB: expected a number of MiB"):
        fused._budget()


def test_a_budget(monkeypatch):
    monkeypatch.setenv("ELBOWROOM_LOGITS_MIB", "64")
    assert fused._budget() == 64 * 2**20


def test_settings_follow_the_device_unless_chosen(monkeypatch):
    found = {}
    for major in (8, 9, 12):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, major=major: (major, 0))
        found[major] = settings.of(torch.device("cuda"))
    assert found[8] == found[12] == settings.of(torch.device("cpu")) == settings.USUAL
    assert found[9].half.columns > settings.USUAL.half.columns
    monkeypatch.setattr(settings, "CHOSEN", replace(settings.USUAL, listed=7))
    assert settings.of(torch.device("cpu")).listed == 7


@pytest.mark.parametrize(
    ("count", "vocab", "one", "several", "expected"),
    [
        (100, 1000, 0, 0, 100),  # all at once
        (8192, 128_256, 0, 0, 4096),  # even parts, of whole blocks
        (4096, 128_256, 0, -(2**25), 4096),  # one need leave nothing
        (8192, 131_072, 2**31, 0, 8192),  # it takes what it spares
        (8192, 256_000, 0, 0, 2048),
        (8192, 256_000, 0, -(2**25), 1664),
        (8192, 256_000, 2**31, 2**30, 4096),
        (70_000, 100, 0, 0, 23_424),  # lists number tokens in 16 bits
        (3, 10**9, 0, -(2**40), 1),
    ],
)
def test_chunks_are_even_and_within_the_budget(count, vocab, one, several, expected, monkeypatch):
    monkeypatch.setattr(fused, "BUDGET", 1003 * 2**20)
    assert fused._tokens_at_once(count, 2 * vocab, one, several) == expected
