"""Causal attention over short windows on a GPU, straight from the projection's result.

Up to `LONGEST` tokens, all keys and values of a window and a head fit into one program of a
kernel. PyTorch's own attention is made for long windows: it wants queries, keys and values apart
and transposed, and its three gradients have to be put together again.

The two operators below are opaque nodes to ``torch.compile``. Each is one launch that waits for
nothing, so that a CUDA graph can capture it.
"""

# Annotations stay objects in this file: the operators' schemas are read off them.

import importlib.util
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

DEVICES = ("cuda",)  # tests that interpret kernels add the CPU
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (16, 32, 64, 128)  # of a head
LONGEST = 128  # tokens
LARGEST = 2**15  # bytes of the keys of one window and head
COPIES = 7  # of these bytes, or 64 KiB: what a program has in shared memory, at most
HAS_TRITON = importlib.util.find_spec("triton") is not None and torch.version.hip is None
EXACT = "ieee"  # how float32 is multiplied where TF32 is not allowed
TURNS, STAGES = 1, 1  # pairs of window and head a program, and how many it has in flight


def takes(qkv: Float[Tensor, "B T three H d"]) -> bool:
    """Return whether `attend` serves this tensor; made of what ``torch.compile`` knows of it."""
    _, length, _, _, width = qkv.shape
    return (
        HAS_TRITON
        and qkv.device.type in DEVICES
        and qkv.dtype in DTYPES
        and length <= LONGEST
        and width in WIDTHS
        and _bytes(qkv) <= LARGEST
        and (qkv.device.type != "cuda" or _fits(qkv))
    )


def attend(qkv: Float[Tensor, "B T three H d"]) -> Float[Tensor, "B T H d"]:
    """Return the mean of the values up to each place, weighted by ``softmax(q k / sqrt(d))``.

    Float32 products use TF32 where `torch.set_float32_matmul_precision` allows it. The result can
    be differentiated once.

    Args:
        qkv: queries, keys and values of each window, such as `takes` lets pass.
    """
    out: Tensor = _attend(qkv)
    return out


@torch.library.custom_op("elbowroom::attend", mutates_args=())
def _attend(qkv: Tensor) -> Tensor:
    out: Tensor = _result(qkv)
    _launch("forward_kernel", qkv.contiguous(), out)
    return out


@torch.library.custom_op("elbowroom::attend_backward", mutates_args=())
def _attend_backward(qkv: Tensor, dout: Tensor) -> Tensor:
    dqkv = qkv.new_empty(qkv.shape)
    _launch("backward_kernel", qkv.contiguous(), dout.contiguous(), dqkv)
    return dqkv


@_attend.register_fake
def _result(qkv: Tensor) -> Tensor:
    windows, length, _, heads, width = qkv.shape
    return qkv.new_empty(windows, length, heads, width)


@_attend_backward.register_fake
def _(qkv: Tensor, _dout: Tensor) -> Tensor:
    return qkv.new_empty(qkv.shape)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, dout: Tensor) -> Tensor:
    (qkv,) = ctx.saved_tensors
    dqkv: Tensor = _attend_backward(qkv, dout)
    return dqkv


_attend.register_autograd(_differentiate, setup_context=_save)


def _launch(kernel: str, qkv: Tensor, *others: Tensor) -> None:
    windows, length, _, heads, width = qkv.shape
    pairs = windows * heads
    if pairs * length == 0:
        return
    from elbowroom.lab.model import attention_kernels  # imports Triton

    precision = "tf32" if torch.get_float32_matmul_precision() != "highest" else EXACT
    tile = _tile(length, width, qkv.dtype, precision)
    with torch.cuda.device(qkv.get_device()):
        getattr(attention_kernels, kernel)[(-(-pairs // tile["TURNS"]),)](
            qkv, *others, pairs, length, heads, width**-0.5, **tile
        )


def _tile(length: int, width: int, dtype: torch.dtype, precision: str) -> dict[str, Any]:
    """Return what a program holds at once and with how many warps, so that registers suffice."""
    block = _block(length)
    size = block * width * dtype.itemsize
    units = dtype != torch.float32 or precision != "ieee"  # that multiply matrices
    few = block == LONGEST or size > 2**13
    warps = 8 if few else max(1, block // 16, size // 2**11) * (1 if units else 2)
    return {
        "BLOCK": block,
        "ROWS": min(block, 32 if units else 16) if few else block,
        "WIDTH": width,
        "WHOLE": length == block,
        "TURNS": TURNS,
        "STAGES": STAGES,
        "PRECISION": precision,
        "num_warps": warps,
    }


def _block(length: int) -> int:
    return max(16, 1 << (length - 1).bit_length())


def _bytes(qkv: Tensor) -> int:
    return _block(qkv.shape[1]) * qkv.shape[-1] * qkv.dtype.itemsize


def _fits(qkv: Tensor) -> bool:
    """Tell whether the device has TF32 and bfloat16, and shared memory for a program."""
    device: Any = torch.cuda.get_device_properties(qkv.device)
    room: int = device.shared_memory_per_block_optin  # PyTorch's own stub lacks it
    return int(device.major) >= 8 and COPIES * _bytes(qkv) <= room
