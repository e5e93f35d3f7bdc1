"""Attention, compiled for GPUs that need not be there; `test_attention` runs this."""

from __future__ import annotations

import re

import pytest
import torch

from elbowroom.lab.model import attention, attention_kernels
from tests.compiling import CAPABILITIES, REGISTERS, compile_for, usage

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# tokens, width of a head, dtype, precision, and how many programs a multiprocessor can hold
TILES = [
    (64, 32, "fp32", "tf32", 2),  # the paper's
    (64, 32, "fp32", attention.EXACT, 1),
    (64, 32, "bf16", "tf32", 3),
    (128, 64, "fp32", "tf32", 1),
    (50, 32, "fp32", "tf32", 2),
]
UNITS = r"(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\S*"  # instructions of matrix units


@pytest.mark.parametrize("kernel", ["forward_kernel", "backward_kernel"])
@pytest.mark.parametrize(("length", "width", "dtype", "precision", "programs"), TILES)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nothing_spills(capability, length, width, dtype, precision, programs, kernel, tmp_path):
    compiled, warps = compile_tile(capability, kernel, length, width, dtype, precision)
    used = usage(compiled, tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    assert programs * used["REG"] * 32 * warps <= REGISTERS
    keys = attention._block(length) * width * DTYPES[dtype].itemsize
    assert used["SHARED"] <= max(attention.COPIES * keys, 2**16)
    ptx = compiled.asm["ptx"]
    assert "ld.global.v4" in ptx
    assert "st.global.v4" in ptx
    products = re.findall(UNITS, ptx)
    assert bool(products) == (precision != attention.EXACT)
    assert all(("tf32" if dtype == "fp32" else "f16") in product for product in products)


def compile_tile(capability, name, length, width, dtype, precision):
    """Compile a kernel for the tile that `attention` would choose; return its warps too."""
    kernel = getattr(attention_kernels, name)
    tile = attention._tile(length, width, DTYPES[dtype], precision)
    warps = tile.pop("num_warps")
    tensors = [x for x in ("qkv", "out", "dout", "dqkv") if x in kernel.arg_names]
    types = dict.fromkeys(tensors, f"*{dtype}") | dict.fromkeys(("pairs", "T", "H"), "i32")
    odd = ["H"] if length % 16 == 0 else ["H", "T"]
    return compile_for(capability, kernel, types, tile, warps, odd), warps
