"""The kernels of the loss, compiled for GPUs that need not be there; `test_fused` runs this."""

from __future__ import annotations

import re

import pytest

from elbowroom.losses.kernels import launch, lists, products, rows
from tests.compiling import CAPABILITIES, REGISTERS, compile_for, usage

INTS = ("n", "V", "S", "D", "TOKENS")
BYTES = ("counted", "protect", "rare", "touched", "flags", "needed")
LONG = ("target", "kept", "argmax")
INT32 = ("order", "blocks", "strips", "counts", "place", "entry_column", "entries")
INPUTS = ("raw", "second", "gradient", "hidden", "weight", "hidden_gradient", "bias")
NUMBERS = launch.NUMBERS
UNITS = r"(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\S*"  # instructions of matrix units
SHARED = {80: 164, 90: 228, 100: 228}  # KiB of a multiprocessor
ROWS = {"BIAS": False, "CAP": False, "PROTECT": False, "RARE": False}
ABSENT = {"protect": None, "rare": None, "bias": None}


def types_of(kernel, dtype: str) -> dict[str, str]:
    """Return the type of each argument by its name."""
    found = {}
    for name in kernel.arg_names:
        for names, kind in (
            (INTS, "i32"), (BYTES, "*i8"), (LONG, "*i64"), (INT32, "*i32"), (INPUTS, f"*{dtype}"),
            (("tokens",), "*i16"), (NUMBERS, "fp32"),
        ):  # fmt: skip
            if name in names:
                found[name] = kind
    others = set(kernel.arg_names) - set(found)
    return found | {name: "*fp32" for name in others if name.islower()}


def check(kernel, dtype, constants, warps, capability, folder, stages=3, most=REGISTERS):
    """Compile; nothing may spill, and the program must fit."""
    types = {k: v for k, v in types_of(kernel, dtype).items() if k not in constants}
    compiled = compile_for(
        capability, kernel, types, constants, warps, ("n", "S", "TOKENS"), stages
    )
    used = usage(compiled, folder)
    assert used["STACK"] == used["LOCAL"] == 0, used
    assert used["REG"] * 32 * warps <= most, used
    assert used["SHARED"] <= SHARED[capability] * 1024, used
    return compiled.asm["ptx"]


@pytest.mark.parametrize("variant", range(5))
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_survey(capability, stats, variant, tmp_path):
    constants = ROWS | {"VARIANT": variant, "SMOOTH": False, "STATS": stats, "GRADIENT": True}
    constants |= ABSENT | {"BLOCK": launch._block(10**6, variant)}
    if not stats:
        constants |= dict.fromkeys(("touched", "log_probability", "rank", "argmax"))
    kernel = rows.survey_kernel
    ptx = check(kernel, "bf16", constants, launch.ROW_WARPS, capability, tmp_path)
    assert re.search(r"ld\.global[^\n]*\.v4", ptx)


@pytest.mark.parametrize(
    ("whole", "variant"), [(True, 0), *((False, variant) for variant in range(5))]
)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_grade(capability, whole, variant, tmp_path):
    constants = ROWS | {"VARIANT": variant, "DETACHED": False, "WHOLE": whole}
    constants |= ABSENT | {"LISTED": 0 if whole or variant > 1 else 128}
    constants["BLOCK"] = launch._block(10**6, variant)
    if whole:
        names = ("flags", "needed", "place", "blocks", "second", "entry_column", "entry_value")
        constants |= dict.fromkeys((*names, "entries"))
    kernel = rows.grade_kernel
    check(kernel, "bf16", constants, launch.ROW_WARPS, capability, tmp_path)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["weight_kernel", "blocks_kernel"])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_products(capability, name, dtype, tmp_path):
    tiles = launch.HOPPER_TILES if capability == 90 else launch.TILES
    columns, depth, warps, stages = tiles[4 if dtype == "fp32" else 2]
    constants = {"DEPTH": depth, "COLUMNS": columns, "PRECISION": "tf32"}
    if name == "weight_kernel":
        constants |= {"FIRST": False, "BIAS": False, "bias_gradient": None}
    else:
        constants |= {"TOKENS": 128, "PARTS": 128 // depth}
    kernel = getattr(products, name)
    ptx = check(kernel, dtype, constants, warps, capability, tmp_path, stages)
    assert re.search(UNITS, ptx)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_lists(capability, tmp_path):
    check(lists.tokens_kernel, "bf16", {"STRIPS": 16, "ROWS": 128}, 4, capability, tmp_path)
    constants = {"TOKENS": 128, "STRIPS": 256, "ROWS": 32}
    check(lists.strips_kernel, "bf16", constants, 8, capability, tmp_path)
    constants = {"LISTED": 128, "ROWS": 16, "COLUMNS": 512}
    check(products.entries_kernel, "bf16", constants, 4, capability, tmp_path)
