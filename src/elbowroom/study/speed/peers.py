"""What computes the loss of a head: ours, and what others offer, as functions of the same form."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from elbowroom.errors import ArgumentValueError
from elbowroom.losses import fused
from elbowroom.losses.functional import Backend, linear_thresholded_cross_entropy
from elbowroom.study.speed.chunked import Chunked, at_once
from elbowroom.study.speed.problem import Problem, kept, share_margins

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Way:
    """One way to compute the loss of the same data, and what was measured of it.

    Attributes:
        name: a peer's name, or ours with its margin.
        loss: of hidden states and head; None if it cannot run here.
        peer: computes ordinary cross-entropy, and is not ours.
        dense: leaves nothing out of the gradients.
        margin: ours only: a number, or None where a share decides.
        share: ours only: the share of the logits that was asked for.
        kept, strips: the share of the logits that is kept, and of strips of 128 that hold one.
        seconds: one a repetition.
        peak: bytes beyond inputs and gradients at the highest point; None if not measured.
        trouble: why it could not be measured.
    """

    name: str
    loss: Loss | None
    peer: bool = False
    dense: bool = True
    margin: float | None = None
    share: float | None = None
    kept: float = 1.0
    strips: float = 1.0
    seconds: list[float] = field(default_factory=list)
    peak: int | None = None
    trouble: str = ""


@dataclass(frozen=True)
class Peer:
    """A peer: how it is made from the targets, and what it needs.

    Attributes:
        make: returns the loss.
        words: what it is, for people.
        package: module and distribution that it needs, if any.
        cuda: it runs on CUDA devices only.
        dense: leaves nothing out of the gradients.
    """

    make: Callable[[Tensor], Loss]
    words: str
    package: tuple[str, str] | None = None
    cuda: bool = False
    dense: bool = True


def ours(
    problem: Problem, margins: Sequence[float] = (float("inf"),), shares: Sequence[float] = ()
) -> list[Way]:
    """Return our loss with each margin, and with margins that keep each share.

    Args:
        problem: the data.
        margins: numbers; inf is ordinary cross-entropy.
        shares: of the logits, each above 0 and at most 1.

    Example:
        >>> from elbowroom.study.speed.problem import Shape, synthetic
        >>> [way.name for way in ours(synthetic(Shape(4, 3, 10)), shares=[0.5])]
        ['ours, margin inf', 'ours, 0.5 kept']
    """
    ways = []
    for margin in margins:
        way = Way(f"ours, margin {margin:g}", _our_loss(problem, margin), margin=margin)
        way.kept, way.strips = kept(problem, margin)
        ways.append(way)
    for share in shares:
        each = share_margins(problem, share)
        way = Way(f"ours, {share:g} kept", _our_loss(problem, each), share=share)
        way.kept, way.strips = kept(problem, each)
        ways.append(way)
    return ways


def peer_ways(problem: Problem, names: Sequence[str] | None = None) -> list[Way]:
    """Return peers by name; one that cannot run here says why, and how to get it.

    Args:
        problem: the data.
        names: of `PEERS`; all if None.

    Example:
        >>> from elbowroom.study.speed.problem import Shape, synthetic
        >>> [way.name for way in peer_ways(synthetic(Shape(4, 3, 10)), ["eager", "chunked"])]
        ['eager', 'chunked']
    """
    ways = []
    for name in PEERS if names is None else names:
        if name not in PEERS:
            raise ArgumentValueError("peers", f"names of {', '.join(PEERS)}", repr(name))
        way = Way(name, None, peer=True, dense=PEERS[name].dense)
        way.trouble = _lacks(PEERS[name], problem.hidden.device)
        if not way.trouble:
            try:
                way.loss = PEERS[name].make(problem.target)
            except Exception as error:  # another version of the package, say
                way.trouble = said(error)
        ways.append(way)
    return ways


def said(error: BaseException) -> str:
    """Return an error in a few words.

    Example:
        >>> said(RuntimeError("no such thing; and so on"))
        'failed: RuntimeError: no such thing; and so on'
    """
    if is_full(error):
        return "out of memory"
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    name = type(error).__name__
    return f"failed: {name}: {text[:100]}" if text else f"failed: {name}"


def is_full(error: BaseException) -> bool:
    """Return whether an error says that there is no memory left, on whatever device.

    Example:
        >>> is_full(torch.OutOfMemoryError("")), is_full(RuntimeError("other"))
        (True, False)
    """
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allo" in str(error)


def versions() -> dict[str, str]:
    """Return the versions of the packages that times depend on, of those that are installed.

    Example:
        >>> "torch" in versions()
        True
    """
    packages = ["torch", "triton", *(peer.package[1] for peer in PEERS.values() if peer.package)]
    found = {}
    for name in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def our_backend(hidden: Tensor) -> Backend:
    """Return the backend that is measured: the kernels, where they serve such hidden states.

    Args:
        hidden: of the data.
    """
    return "triton" if fused.takes(hidden) else "chunked"


def _our_loss(problem: Problem, margin: float | Tensor) -> Loss:
    backend = our_backend(problem.hidden)
    return lambda x, w: linear_thresholded_cross_entropy(
        x, w, problem.target, margin, backend=backend
    )


def _lacks(peer: Peer, device: torch.device) -> str:
    """Return what a peer lacks to run on a device, or nothing."""
    if peer.package is not None and importlib.util.find_spec(peer.package[0]) is None:
        also = ", and a CUDA device" if peer.cuda and device.type != "cuda" else ""
        return f"not installed: pip install {peer.package[1]}{also}"
    if peer.cuda and device.type != "cuda":
        return "needs a CUDA device"
    return ""


def _eager(target: Tensor) -> Loss:
    return lambda x, w: F.cross_entropy(F.linear(x, w), target)


def _compiled(target: Tensor) -> Loss:
    torch._dynamo.reset()
    compiled = torch.compile(_in_float, dynamic=False)
    return lambda x, w: compiled(x, w, target)


def _in_float(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(x, w).float(), target)


def _torch(target: Tensor) -> Loss:
    function: Any = getattr(F, "linear_cross_entropy", None)
    if function is None:
        raise RuntimeError("needs torch 2.13 or newer")
    policy: Any = "balanced" if target.is_cuda else "accurate"  # sums in float32, as the others

    def loss(x: Tensor, w: Tensor) -> Tensor:  # in its own small chunks it is ten times slower
        options = torch.nn.LinearCrossEntropyOptions(
            batch_chunk_size=at_once(x, w), chunking_method=None, acc_policy=policy
        )
        found: Tensor = function(x, w, target, options=options)
        return found

    return loss


def _liger(target: Tensor) -> Loss:
    module = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    apply = module.LigerFusedLinearCrossEntropyFunction.apply
    # bias, class weights, ignored index, z-loss, smoothing, reduction, softcap, z-loss returned,
    # and the head's gradient summed in float32, as ours is
    rest = (None, None, -100, 0.0, 0.0, "mean", None, False, torch.float32)
    return lambda x, w: apply(x, w, target, *rest)[0]


def _cce(target: Tensor) -> Loss:
    function = importlib.import_module("cut_cross_entropy").linear_cross_entropy
    return lambda x, w: function(x, w, target, impl="cce")


def _chunked(target: Tensor) -> Loss:
    return lambda x, w: Chunked.apply(x, w, target)  # type: ignore[no-untyped-call]


PEERS = {
    "eager": Peer(_eager, "F.cross_entropy(F.linear)"),
    "compile": Peer(_compiled, "torch.compile of linear and cross-entropy"),
    "chunked": Peer(_chunked, "chunks of tokens, the library's products, gradients in the forward"),
    "torch": Peer(_torch, "F.linear_cross_entropy in chunks (torch 2.13)"),
    "liger": Peer(
        _liger, "Liger, the head's gradient in float32", ("liger_kernel", "liger-kernel"), cuda=True
    ),
    "cce": Peer(
        _cce, "CCE, which leaves out small gradients",
        ("cut_cross_entropy", "cut-cross-entropy"), cuda=True, dense=False,
    ),
}  # fmt: skip
