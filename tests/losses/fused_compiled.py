"""The kernels of the loss, compiled for GPUs that need not be there; `test_fused` runs this."""

from __future__ import annotations

import re

import pytest

from elbowroom.losses.kernels import launch, lists, products, rows, settings
from tests.compiling import CAPABILITIES, REGISTERS, compile_for, usage

INTS = ("n", "V", "S", "D", "TOKENS", "STRIDE", "LISTED", "PIECES", "size", "programs")
BYTES = ("counted", "protect", "rare", "touched", "flags")
LONG = ("target", "kept", "argmax")
INT32 = (
    "order", "blocks", "strips", "counts", "block_strips", "block_counts", "place", "entry_column",
    "entries",
)  # fmt: skip
INPUTS = (
    "raw", "second", "gradient", "hidden", "weight", "hidden_gradient", "weight_gradient", "bias",
    "rest", "x",
)  # fmt: skip
ODD = ("n", "V", "S", "TOKENS", "LISTED", "PIECES", "size", "programs")  # not specialised
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
    compiled = compile_for(capability, kernel, types, constants, warps, ODD, stages)
    used = usage(compiled, folder)
    assert used["STACK"] == used["LOCAL"] == 0, used
    assert used["REG"] * 32 * warps <= most, used
    assert used["SHARED"] <= SHARED[capability] * 1024, used
    return compiled.asm["ptx"]


def chosen(capability: int) -> settings.Settings:
    return settings.BY_CAPABILITY.get(capability // 10, settings.USUAL)


def of_rows(rows_: settings.Rows, variant: int, capability: int) -> tuple[dict[str, int], int]:
    found = launch.of_rows(rows_, 10**6, variant, chosen(capability).fading)
    return found, found.pop("num_warps")


@pytest.mark.parametrize("variant", range(5))
@pytest.mark.parametrize("stats", [False, True])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_survey(capability, stats, variant, tmp_path):
    constants, warps = of_rows(chosen(capability).survey, variant, capability)
    constants |= ROWS | {"VARIANT": variant, "SMOOTH": False, "STATS": stats, "GRADIENT": True}
    constants |= ABSENT
    if not stats:
        constants |= dict.fromkeys(("touched", "log_probability", "rank", "argmax"))
    ptx = check(rows.survey_kernel, "bf16", constants, warps, capability, tmp_path)
    assert re.search(r"(?:ld\.global[^\n]*\.v4|cp\.async[^\n]*0x10)", ptx)


@pytest.mark.parametrize(
    ("whole", "variant"), [(True, 0), *((False, variant) for variant in range(5))]
)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_grade(capability, whole, variant, tmp_path):
    constants, warps = of_rows(chosen(capability).grade, variant, capability)
    constants |= ROWS | {"VARIANT": variant, "DETACHED": False, "WHOLE": whole}
    constants |= ABSENT | {"LISTS": not whole and variant < 2}
    if whole:
        names = ("strips", "counts", "block_strips", "block_counts", "place", "blocks", "second")
        constants |= dict.fromkeys(names)
    if not constants["LISTS"]:
        constants |= dict.fromkeys(("entry_column", "entries"))
    ptx = check(rows.grade_kernel, "bf16", constants, warps, capability, tmp_path)
    assert re.search(r"ld\.global[^\n]*\.v4", ptx)
    assert re.search(r"st\.global[^\n]*\.v4", ptx)


@pytest.mark.parametrize(
    ("dtype", "precision"), [("fp32", "tf32"), ("fp32", "ieee"), ("bf16", "ieee"), ("fp16", "ieee")]
)
@pytest.mark.parametrize("name", ["weight_kernel", "blocks_kernel"])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_products(capability, name, dtype, precision, tmp_path):
    tile = chosen(capability).half
    if dtype == "fp32":
        tile = chosen(capability).single if precision == "tf32" else chosen(capability).exact
    constants = {"DEPTH": tile.depth, "COLUMNS": tile.columns, "PRECISION": precision}
    kernel = getattr(products, name)
    if name == "blocks_kernel":
        constants |= {"TOKENS": launch.TOKENS, "PARTS": launch.STRIP // tile.depth}
    else:
        alone = constants | {"FIRST": True, "LAST": True, "BIAS": False}
        alone |= {"bias_gradient": None, "rest": None}
        check(kernel, dtype, alone, tile.warps, capability, tmp_path, tile.stages)
        constants |= {"COLUMNS": tile.columns // 2, "FIRST": False, "LAST": False, "BIAS": True}
        constants |= {"rest": None} if dtype == "fp32" else {}
    ptx = check(kernel, dtype, constants, tile.warps, capability, tmp_path, tile.stages)
    assert re.search(UNITS, ptx) or (dtype, precision) == ("fp32", "ieee")


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_rest(capability, tmp_path):
    chosen_here = chosen(capability)
    strips, height = chosen_here.tokens
    constants = {"STRIPS": strips, "ROWS": height}
    check(lists.tokens_kernel, "bf16", constants, 4, capability, tmp_path)
    constants = {"TOKENS": launch.TOKENS, "STRIPS": 256, "ROWS": 32}
    check(lists.strips_kernel, "bf16", constants, 8, capability, tmp_path)
    count, columns, warps = chosen_here.entries
    constants = {"ROWS": count, "COLUMNS": columns}
    check(products.entries_kernel, "bf16", constants, warps, capability, tmp_path)
    columns = chosen_here.half.columns
    constants = {"TOKENS": launch.TOKENS, "COLUMNS": columns, "ROWS": launch.JOINED}
    check(products.join_kernel, "bf16", constants, 4, capability, tmp_path)
    check(products.scale_kernel, "bf16", {"BLOCK": launch.SCALED}, 8, capability, tmp_path)
