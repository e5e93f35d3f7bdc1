"""The fused step, compiled for GPUs that need not be there; `test_fused` runs this."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from elbowroom.optim import fused, kernels

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
STATE = ("param", "grad", "exp_avg", "exp_avg_sq")
CAPABILITIES = [80, 90, 100]


def compile_for(capability, kernel, types, constants, warps):
    """Compile a kernel; what has no type in ``types`` and is no constant is a number."""
    signature = {name: types.get(name, "fp32") for name in kernel.arg_names}
    signature.update(dict.fromkeys(constants, "constexpr"))
    aligned = [["tt.divisibility", 16]]
    places = {kernel.arg_names.index(name): name for name in types}
    attributes = {(i,): aligned for i, name in places.items() if types[name] != "fp32"}
    source = ASTSource(kernel, signature, constants, attributes)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": warps})


def usage(compiled, folder: Path) -> dict[str, int]:
    """Return registers and bytes of stack, local and shared memory."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [TOOL, "-res-usage", cubin]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL|SHARED):(\d+)", text)}


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
