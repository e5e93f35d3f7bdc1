"""The fused step, compiled for GPUs that need not be there; `test_fused` runs this."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elbowroom.optim import fused, kernels
from tests.compiling import CAPABILITIES, compile_for, usage

STATE = ("param", "grad", "exp_avg", "exp_avg_sq")


def assert_lean(compiled, folder: Path) -> None:
    """Nothing spilled, and memory is read and written 16 bytes at a time."""
    used = usage(compiled, folder)
    assert used["STACK"] == used["LOCAL"] == 0
    assert used["REG"] <= 128  # of 256 threads: two programs on a multiprocessor, or more
    ptx = compiled.asm["ptx"]
    assert len(re.findall(r"ld\.global[^\n]*\.v4", ptx)) >= len(STATE)
    assert len(re.findall(r"st\.global[^\n]*\.v4", ptx)) >= len(STATE) - 1


@pytest.mark.parametrize(("marks", "catch_up"), [(False, False), (True, True)])
@pytest.mark.parametrize("width", [64, 2048, 3072, 5120])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_rows(capability, dtype, width, marks, catch_up, tmp_path):
    tile = fused._tile(248320, width)
    warps = tile.pop("num_warps")
    types = dict.fromkeys(STATE, f"*{dtype}") | dict.fromkeys(("lr_stride", "decay_stride"), "i32")
    types |= {"row_step": "*fp32", "n": "i32", "D": "i32"}
    constants = {**tile, "MAXIMIZE": False}
    absent = ["lrs", "decays"]
    if marks:
        types["marks"] = "*u8"
    else:
        absent.append("marks")
    if catch_up:
        types |= {"row_decay": "*fp64", "missed": "*fp32", "kept": "*fp32"}
    else:
        absent += ["row_decay", "missed", "kept"]
    constants |= dict.fromkeys(absent)
    compiled = compile_for(capability, kernels.rows_kernel, types, constants, warps)
    assert_lean(compiled, tmp_path)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_runs(capability, dtype, capturable, tmp_path):
    types = dict.fromkeys(STATE, f"*{dtype}") | dict.fromkeys(("lr_stride", "decay_stride"), "i32")
    types |= {"lrs": "*fp32", "size": "i32", "blocks": "i32"}
    constants = {"MAXIMIZE": False, "BLOCK": fused.TILE, "decays": None}
    if capturable:
        types["steps"] = "*fp32"
    else:
        constants["steps"] = None
    compiled = compile_for(capability, kernels.runs_kernel, types, constants, fused.WARPS)
    assert_lean(compiled, tmp_path)
