"""Several processes, as ``torchrun`` starts them: who this one is, and what all must agree on.

Runs are spread over the processes, which then have nothing to say to each other until all are done.
A run that is trained by all processes together shares its batches (`Population`) or also its
weights (`elbowroom.lab.sharded`). There, numbers go through the fastest routine of the device, and
words (whether to stop, whether a file can be read) through a group of their own on the CPU, which
waits as long as it takes and fails at once where a process has ended.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor

from elbowroom.errors import ArgumentValueError, ElbowroomError
from elbowroom.lab.folder import Company, End, RunFolder

if TYPE_CHECKING:
    from elbowroom.lab.config import RunConfig
    from elbowroom.lab.tokenizers import Tokenizer

T = TypeVar("T")
PATIENCE = timedelta(days=30)  # of words: a process may train its share for that much longer
BUCKET = 2**25  # numbers that are averaged by one call
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets


class RankError(ElbowroomError, RuntimeError):
    """Another process ended, or wants something else than this one."""


class Words:
    """The group that words go through, until the processes part."""

    def __init__(self) -> None:
        self._group: Any = dist.new_group(backend="gloo", timeout=PATIENCE)

    @property
    def group(self) -> Any:
        """What `torch.distributed` takes."""
        if self._group is None:  # None would mean all processes of the caller's group
            raise RankError("the processes have parted; join them again")
        return self._group

    def end(self) -> None:
        """Hang up: others that wait for a word are told, even if this process lives on."""
        group, self._group = self._group, None
        dist.destroy_process_group(group)


@dataclass(frozen=True)
class Ranks:
    """The processes that train together, as one of them sees them.

    Attributes:
        rank: which of them this is.
        world: how many there are.
        local: which of those on this machine this is.
        words: what words go through; None for a process alone.

    Example:
        >>> alone = Ranks()
        >>> alone.is_first, alone.any(True), alone.any(False)
        (True, True, False)
    """

    rank: int = 0
    world: int = 1
    local: int = 0
    words: Words | None = None

    @property
    def is_first(self) -> bool:
        """Whether this process reports and writes for all."""
        return self.rank == 0

    def any(self, flag: bool) -> bool:
        """Return whether it is so in any process; waits for all of them.

        Args:
            flag: whether it is so here.
        """
        if self.words is None:
            return flag
        found = torch.tensor(int(flag))
        with _heard():
            dist.all_reduce(found, dist.ReduceOp.MAX, group=self.words.group)
        return bool(found)

    def same(self, what: str, text: str) -> None:
        """Raise, in all processes, unless all of them have the same text.

        Args:
            what: for the message.
            text: that all must have.
        """
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        both = torch.tensor([number, -number])
        if self.words is not None:
            with _heard():
                dist.all_reduce(both, dist.ReduceOp.MAX, group=self.words.group)
        if int(both[0]) != -int(both[1]):
            fix = "start all with one command, and one folder that all can see"
            raise RankError(f"{what}: the processes differ in it; {fix}")

    def share(self, make: Callable[[], State]) -> State:
        """Return what the first process makes, in all of them.

        Args:
            make: called in the first process alone.
        """
        if self.words is None:
            return make()
        parts: list[bytes] = [b"", b""]
        if self.is_first:
            plain, tensors = make()
            parts = [json.dumps(plain).encode(), safetensors.torch.save(dict(tensors))]
        plain_part, tensor_part = (self._from_first(part, self.words.group) for part in parts)
        return json.loads(plain_part), safetensors.torch.load(tensor_part)

    def _from_first(self, data: bytes, group: Any) -> bytes:
        size = torch.tensor(len(data))
        with _heard():
            dist.broadcast(size, 0, group=group)
            buffer = torch.empty(int(size), dtype=torch.uint8)
            if self.is_first:
                buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            dist.broadcast(buffer, 0, group=group)
        return buffer.numpy().tobytes()

    @contextmanager
    def one_first(self) -> Iterator[None]:
        """Let one process of each machine do this before the others, which find what it left."""
        if self.local:
            self.any(False)
        yield
        if not self.local:
            self.any(False)


State = tuple[dict[str, Any], Mapping[str, Tensor]]  # plain data and tensors
ALONE = Ranks()
_current: Ranks | None = None


def flat(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of several runs as those of one."""
    return {f"{r}/{name}": x for r, state in enumerate(states) for name, x in state.items()}


def by_run(tensors: Mapping[str, Tensor], runs: int) -> list[dict[str, Tensor]]:
    """Return what `flat` made one of."""
    found: list[dict[str, Tensor]] = [{} for _ in range(runs)]
    for key, x in tensors.items():
        r, _, name = key.partition("/")
        found[int(r)][name] = x
    return found


def is_launched() -> bool:
    """Return whether this process is one of several, by what ``torchrun`` sets."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return all(name in os.environ for name in _NEEDED) and int(os.environ["WORLD_SIZE"]) > 1


def is_first() -> bool:
    """Return whether this process reports for all: it is the only one, or the first."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return not is_launched() or int(os.environ["RANK"]) == 0


def own_device(device: torch.device | str | None = None) -> torch.device:
    """Return the device of this process: of CUDA's, the one of its number on this machine.

    Args:
        device: what was asked for; a number in it stays. CUDA where there is one, if None.
    """
    found = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    number: int | None = found.index
    if found.type != "cuda" or number is not None or not is_launched():
        return found
    local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= count:
        fix = f"start at most {count} processes on this machine, or use the CPU"
        raise ArgumentValueError("device", "a GPU for each process", f"{count} GPUs", fix)
    return torch.device("cuda", local)


@contextmanager
def joined(device: torch.device) -> Iterator[Ranks]:
    """Yield who this process is; where ``torchrun`` started several, they meet here and part.

    Inside another `joined`, and in a process group that the caller has made, that one is used.

    Args:
        device: of this process; decides how numbers travel.
    """
    global _current
    if _current is not None:
        yield _current
        return
    if not is_launched():
        yield ALONE
        return
    made = not dist.is_initialized()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    with _heard():
        if made:
            dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        words = Words()
    rank = dist.get_rank()
    local = int(os.environ.get("LOCAL_RANK", rank))
    _current = Ranks(rank, dist.get_world_size(), local, words)
    whole = False
    try:
        with _heard(_is_of_others):
            yield _current
        _current.any(False)  # nobody leaves while another still waits for a word
        whole = True
    finally:
        _current = None
        words.end()
        if made and (whole or device.type == "cpu"):  # NCCL would wait for those that have failed
            dist.destroy_process_group()


def _is_of_others(error: RuntimeError) -> bool:
    """Return whether torch raised it because another process cannot be reached."""
    return isinstance(error, dist.DistError) or "/gloo/" in str(error)


@contextmanager
def _heard(concerns: Callable[[RuntimeError], bool] = lambda _: True) -> Iterator[None]:
    """Say what it means where another process does not answer.

    Args:
        concerns: tells which errors mean that.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, ElbowroomError) or not concerns(error):
            raise
        said = " ".join(str(error).split())[:200]
        raise RankError(
            "another process has ended, or cannot be reached; look at what it said, and go on "
            f"with --resume ({said})"
        ) from error


def spread(
    populations: Sequence[Sequence[T]], world: int, *, whole: Callable[[T], bool] | None = None
) -> list[list[list[T]]]:
    """Return what each process trains: of each population a stretch, as even as can be.

    Args:
        populations: the runs of each.
        world: how many processes there are.
        whole: tells, by its first run, whether a population must not be cut: it was begun.

    Example:
        >>> spread([["a", "b", "c"], ["d"]], 2)
        [[['a', 'b']], [['c'], ['d']]]
    """
    found: list[list[list[T]]] = [[] for _ in range(world)]
    for members in populations:
        idle = sorted(range(world), key=lambda rank: sum(map(len, found[rank])))
        if whole is not None and whole(members[0]):
            found[idle[0]].append(list(members))
            continue
        size, more = divmod(len(members), world)
        larger = set(idle[:more])
        start = 0
        for rank in range(world):
            stop = start + size + (rank in larger)
            if stop > start:
                found[rank].append(list(members[start:stop]))
            start = stop
    return found


def check_shared(run: RunConfig, world: int) -> None:
    """Raise unless several processes can train a run together.

    Args:
        run: in which ``training.parallel`` says how.
        world: how many they are.
    """
    training, optimizer = run.training, run.optimizer
    times = world * training.accumulate
    if training.batch % times:
        fix = "change it, or have another number of processes, or set training.parallel to none"
        expected = f"a multiple of {world} processes times accumulate ({training.accumulate})"
        raise ArgumentValueError("training.batch", expected, training.batch, fix)
    if training.parallel != "fsdp":
        return
    whole = {
        "optimizer.name": optimizer.name == "coupled_adamw",
        "optimizer.center": optimizer.center,
    }
    for name in (name for name, wanted in whole.items() if wanted):
        fix = "leave it out, or set training.parallel to ddp"
        expected = "nothing that needs whole matrices where weights are sharded"
        raise ArgumentValueError(name, expected, getattr(optimizer, name.split(".")[1]), fix)


class Onlooker(RunFolder):
    """A run's folder for a process that helps to train the run: another one writes."""

    def begin(self, config: RunConfig, tokenizer: Tokenizer, company: Company) -> None:
        """Leave it to the first process."""

    def append(self, line: Mapping[str, Any]) -> None:
        """Leave it to the first process."""

    def settle_metrics(self) -> None:
        """Leave it to the first process."""

    def forget_after(self, step: int) -> None:
        """Leave it to the first process."""

    def save_end(self, end: End) -> None:
        """Leave it to the first process."""

    def save_model(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """Leave it to the first process."""

    def save_gradients(self, tensors: Mapping[str, Tensor]) -> None:
        """Leave it to the first process."""

    def finish(self, record: Mapping[str, Any]) -> None:
        """Leave it to the first process."""

    def forget_state(self) -> None:
        """Leave it to the first process."""


def average(tensors: Sequence[Tensor]) -> None:
    """Average tensors over all processes, in place: many at a time, so that calls are few.

    Not by `DistributedDataParallel`: it hooks into ``backward()``, while a population takes its
    gradients from ``torch.autograd.grad``, which does not copy them.

    Args:
        tensors: of the same shapes in all processes.
    """
    world = dist.get_world_size()
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        with _heard():
            dist.all_reduce(flat)
        flat /= world
        parts = torch.split(flat, [tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield neighbours of one dtype, together at most `BUCKET` numbers or alone."""
    for _, same in groupby(tensors, lambda tensor: tensor.dtype):
        bucket: list[Tensor] = []
        for tensor in same:
            if bucket and sum(x.numel() for x in bucket) + tensor.numel() > BUCKET:
                yield bucket
                bucket = []
            bucket.append(tensor)
        yield bucket
