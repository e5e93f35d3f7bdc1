"""Kernels compiled for GPUs that need not be there, and what they need of one."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
CAPABILITIES = [80, 90, 100]
REGISTERS = 2**16  # of a multiprocessor


def compile_for(capability, kernel, types, constants, warps, odd: Collection[str] = (), stages=3):
    """Compile a kernel; what has no type in ``types`` and is no constant is a number.

    Pointers and integers are multiples of 16, except those named by ``odd``.
    """
    signature = {name: types.get(name, "fp32") for name in kernel.arg_names}
    signature.update(dict.fromkeys(constants, "constexpr"))
    aligned = [["tt.divisibility", 16]]
    even = [name for name in types if types[name] != "fp32" and name not in odd]
    attributes = {(kernel.arg_names.index(name),): aligned for name in even}
    source = ASTSource(kernel, signature, constants, attributes)
    target = GPUTarget("cuda", capability, 32)
    return triton.compile(source, target=target, options={"num_warps": warps, "num_stages": stages})


def usage(compiled, folder: Path) -> dict[str, int]:
    """Return registers and bytes of stack, local and shared memory."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [TOOL, "-res-usage", cubin]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {n: int(value) for n, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", text)}
    return found | {"SHARED": compiled.metadata.shared}
