"""One run whose weights are spread over all processes: FSDP2 around a population of one.

Dimension 0 of a parameter is that of runs, of size 1, so another one is cut: the first that the
processes divide. Blocks exist in full only while they are used; embedding, head and final norm from
the beginning of a step to its end, as the loss needs them outside of the model. The optimizer sees
its process's parts as plain tensors: AdamW works element by element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from elbowroom.errors import ArgumentValueError
from elbowroom.lab.distributed import average
from elbowroom.lab.model import GPT
from elbowroom.lab.population import Population

_LESS = "have fewer processes, or set training.parallel to ddp"


class ShardedPopulation(Population):
    """A population of one, of which each process holds a part, trained by all of them.

    It takes and gives what `Population` does: the state of a run is whole, so that training goes on
    with any number of processes. What all of them must call together: `advance`, `log`,
    `run_state`, `model_state`, and the model itself.
    """

    def _place(self, model: GPT) -> GPT:
        return model  # moved part by part, when it is cut: it may not fit on one device

    def _parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Cut the model, and return its parts."""
        if self.runs[0].optimizer.name == "row_adamw" and self.model.vocab_size % self.world:
            expected = f"a multiple of {self.world} processes, so that rows stay whole"
            raise ArgumentValueError("vocab_size", expected, self.model.vocab_size, _LESS)
        groups = self.model.parameter_groups(weight_decay)
        names = {id(param): name for name, param in self.model.named_parameters()}
        named = [[names[id(param)] for param in group["params"]] for group in groups]
        shard(self.model, self.device, self.world, compiled=self._compiles())
        self._parts_of = dict(self.model.named_parameters())  # whole while they are used
        self._shards = {
            name: param.detach().to_local()  # type: ignore[attr-defined]
            for name, param in self._parts_of.items()
        }
        for group, own in zip(groups, named, strict=True):
            group["params"] = [self._shards[name] for name in own]
        return groups

    def _token_matrices(self) -> list[Tensor]:
        if not hasattr(self, "_shards"):
            return super()._token_matrices()
        return [self._shards[name] for name in ("embedding", "output") if name in self._shards]

    def _compile(self) -> None:
        """Compile nothing here: blocks are compiled one by one, before they are cut."""

    def _step(self) -> None:
        progress, count = self.progress(), self.training.accumulate
        ids, target = self._draw(self.step)
        self._observe(target)
        loss = torch.zeros_like(self.grad_norm)
        for part in self._parts():
            with self.precision():
                losses = self._losses(ids[:, part], target[:, part], self.step, progress)
            losses.sum().backward()  # type: ignore[no-untyped-call]
            loss += losses.detach() / count
        grads = []
        for name, shard in self._shards.items():
            found = self._parts_of[name].grad
            assert isinstance(found, DTensor)
            shard.grad = found.to_local().div_(count)
            grads.append(shard.grad)
            self._parts_of[name].grad = None
        self._update(loss, grads)
        self.step += 1

    def _average(self, loss: Tensor, grads: list[Tensor]) -> None:
        average([loss])  # gradients were averaged when they were cut

    def _norms(self, grads: list[Tensor]) -> Float[Tensor, " R"]:
        squares = torch.stack([grad.flatten(1).square().sum(1) for grad in grads]).sum(0)
        dist.all_reduce(squares)
        return squares.sqrt()

    # What is kept to go on later

    def settle(self) -> None:
        """Training is over, as in `Population`: for the rows and weights of this process."""
        super().settle()
        self._reshard()

    def weights(self) -> dict[str, Tensor]:
        """Return this process's parts of the parameters, by name."""
        return self._shards

    def model_state(self, r: int) -> dict[str, Tensor]:
        """Return the weights of the run, whole."""
        return {name: self._whole(name, shard)[r].cpu() for name, shard in self._shards.items()}

    def load_model_state(self, r: int, tensors: Mapping[str, Tensor]) -> None:
        """Set the weights of the run from whole ones."""
        self._reshard()
        for name, shard in self._shards.items():
            shard[r].copy_(self._part(name, tensors[name][None])[0])

    def _optimizer_state(self, r: int) -> dict[str, Tensor]:
        return {
            f"optimizer.{name}.{what}": self._whole(name, value)[r].cpu() if value.ndim else value
            for name, shard in self._shards.items()
            for what, value in sorted(self.optimizer.state[shard].items())  # in one order in all
            if isinstance(value, Tensor)
        }

    def _load_optimizer_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        for key, value in states[0].items():
            if not key.startswith("optimizer."):
                continue
            name, _, what = key.removeprefix("optimizer.").rpartition(".")
            scalar = value.ndim == 0
            on = "cpu" if scalar and self.device.type == "cpu" else self.device
            own = value.clone() if scalar else self._part(name, value[None])
            self.optimizer.state[self._shards[name]][what] = own.to(on)

    def _reshard(self) -> None:
        """Give up what an evaluation has left whole."""
        assert isinstance(self.model, FSDPModule)
        self.model.reshard()

    def _whole(self, name: str, part: Tensor) -> Tensor:
        """Return the whole of which each process has a part, cut as a parameter is."""
        like = self._parts_of[name]
        assert isinstance(like, DTensor)
        found = DTensor.from_local(part, like.device_mesh, like.placements, run_check=False)
        return found.full_tensor()

    def _part(self, name: str, whole: Tensor) -> Tensor:
        """Return this process's part of something whole."""
        like = self._parts_of[name]
        assert isinstance(like, DTensor)
        (placement,) = like.placements
        assert isinstance(placement, Shard)
        return whole.chunk(self.world, placement.dim)[like.device_mesh.get_local_rank()].clone()


def shard(model: GPT, device: torch.device, world: int, *, compiled: bool = False) -> None:
    """Cut a model's parameters into parts, one a process, block by block.

    Args:
        model: with one run, on any device.
        device: where this process computes.
        world: how many processes there are.
        compiled: compile the blocks.
    """
    for name, param in model.named_parameters():
        _cut(name, param, world)
    mesh = init_device_mesh(device.type, (world,))

    def place(param: nn.Parameter) -> Shard:
        return Shard(_cut("", param, world))

    for block in model.blocks:
        if compiled:
            block.compile()
        fully_shard(block, mesh=mesh, shard_placement_fn=place)
    # FSDP warns of views: adding to one in place would lose what makes it fetch the weights.
    model.register_forward_hook(lambda _model, _ids, hidden: hidden.clone())
    fully_shard(model, mesh=mesh, shard_placement_fn=place, reshard_after_forward=False)


def _cut(name: str, param: Tensor, world: int) -> int:
    """Return the dimension that is cut."""
    for dim in range(1, param.ndim):
        if param.shape[dim] % world == 0:
            return dim
    expected = f"a dimension that {world} processes divide in {name}"
    raise ArgumentValueError("training.parallel", expected, f"{list(param.shape[1:])}", _LESS)
