"""What the two processes of `parallel_pair` do; both call the same function, with their rank."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

import elbowroom as er
from elbowroom.errors import ElbowroomError
from elbowroom.losses import chunked, products

BLOCKS = {  # so small that a problem has several of each
    chunked: {"BLOCK": 3000, "STRIP": 1000, "FEW": 2},
    products: {"TILE": 500, "LIST_LENGTH": 64, "LIST_ROWS": 37},
}


@dataclass
class Call:
    """One call of a loss, with the whole head; ``cut`` is how many rows the first rank has."""

    hidden: Tensor
    weight: Tensor
    target: Tensor
    margin: Any
    cut: int
    options: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float64
    needs: tuple[str, ...] = ("hidden", "weight", "bias")
    passes: int = 1  # backward passes

    def rows(self, rank: int) -> Call:
        """Return the call with the rows of one rank."""
        rows = slice(None, self.cut) if rank == 0 else slice(self.cut, None)
        options = dict(self.options)
        if options.get("bias") is not None:
            options["bias"] = options["bias"][rows]
        return replace(self, weight=self.weight[rows], options=options)

    def do(self, loss, wrap=lambda x: x, **more) -> dict[str, Tensor]:
        """Return the loss and its gradients; ``wrap`` makes something of weight and bias."""
        given = {"hidden": self.hidden, "weight": self.weight, "bias": self.options.get("bias")}
        leaves = {
            name: x.to(self.dtype, copy=True).requires_grad_(name in self.needs)
            for name, x in given.items()
            if x is not None
        }
        wrapped = {name: x if name == "hidden" else wrap(x) for name, x in leaves.items()}
        options = self.options | {"bias": wrapped.get("bias")} | more
        value = loss(wrapped["hidden"], wrapped["weight"], self.target, self.margin, **options)
        for i in range(self.passes if value.requires_grad else 0):
            g = torch.Generator().manual_seed(value.numel())
            upstream = torch.rand(value.shape, generator=g, dtype=torch.float64).to(value.dtype)
            value.backward(upstream, retain_graph=i + 1 < self.passes)
        found = {f"d_{name}": x.grad for name, x in leaves.items() if x.requires_grad}
        return {"loss": value.detach()} | found


@contextlib.contextmanager
def small_blocks():
    with contextlib.ExitStack() as stack:
        for module, sizes in BLOCKS.items():
            stack.enter_context(mock.patch.multiple(module, **sizes))
        yield


def losses(rank, calls, named):
    """Return what each call gives; the group is named, or the default one is meant."""
    group = dist.new_group([0, 1]) if named else None
    with small_blocks():
        own = [call.rows(rank) for call in calls]
        return [call.do(er.vocab_parallel_cross_entropy, group=group) for call in own]


def of_dtensors(rank, calls):
    """Do as `losses`, with a weight (and bias) that is a DTensor, cut as torch cuts them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    found = []
    for call in calls:
        leaves = []

        def wrap(x, leaves=leaves):
            leaves.append(distribute_tensor(x.detach(), mesh, [Shard(0)]).requires_grad_())
            return leaves[-1]

        out = call.do(er.vocab_parallel_cross_entropy, wrap)
        names = ("d_weight", "d_bias")[: len(leaves)]
        out |= {name: x.grad.full_tensor() for name, x in zip(names, leaves, strict=True)}
        assert all(x.grad.placements == (Shard(0),) for x in leaves)
        found.append(out)
    return found


def refused(rank, changes):
    """Return the error that each pair of changed arguments gives, the first rank's and its own."""
    found = []
    for pair in changes:
        given = {"hidden": torch.ones(3, 2), "weight": torch.ones(4, 2), "margin": 1.0}
        given |= {"target": torch.arange(3)} | pair[rank]
        try:
            er.vocab_parallel_cross_entropy(**given)
        except ElbowroomError as error:
            found.append((type(error).__name__, str(error)))
    return found


def refused_dtensors(rank):
    """Return the errors that DTensors give where they cannot be what is meant."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh, flat = init_device_mesh("cpu", (1, 2)), init_device_mesh("cpu", (2,))

    def put(size, *placements, mesh=flat):
        return distribute_tensor(torch.ones(size), mesh, placements)

    whole, cut = put((8, 2), Replicate()), put((8, 2), Shard(0))
    changes = [
        {"weight": whole},
        {"weight": put((8, 2), Shard(1))},
        {"weight": put((8, 2), Replicate(), Shard(0), mesh=mesh)},
        {"weight": cut, "group": dist.group.WORLD},
        {"weight": cut, "hidden": put((3, 2), Replicate())},
        {"bias": put((8,), Shard(0)), "group": dist.new_group([0, 1])},
        {"weight": cut, "bias": put((8,), Replicate())},
    ]
    return [said for change in changes for _, said in refused(rank, [(change, change)])]


def largest(rank, call):
    """Return the number of elements of the largest tensor made in a call."""
    from tests.losses.test_operator import Largest

    with small_blocks(), Largest() as mode:
        call.rows(rank).do(er.vocab_parallel_cross_entropy)
    return mode.elements


def second_derivative(rank, call):
    """Return the error that it gives."""
    hidden = call.hidden.clone().requires_grad_()
    weight = call.rows(rank).weight
    loss = er.vocab_parallel_cross_entropy(hidden, weight, call.target, call.margin)
    try:
        torch.autograd.grad(loss, hidden, create_graph=True)
    except ElbowroomError as error:
        return str(error)
