"""What two processes do together; both call the same function, in `torchrun_pair`.

Each returns plain data. Errors that are meant for users come back as data, too: both processes
have to have them. ``partner`` is the other process; None in that process itself.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist

from elbowroom.errors import ElbowroomError
from elbowroom.lab import distributed
from elbowroom.lab.distributed import average, is_first, is_launched, joined
from elbowroom.lab.population import Population
from tests.lab.toy import corpus, fit, run

CPU = torch.device("cpu")


def said(error):
    return {"error": type(error).__name__, "said": str(error)}


def train(output, runs, *, partner=None, send=None, **options):
    """Train runs; return how it ended and what the observer was told.

    Args:
        output: the folder.
        runs: a list of changes to the toy run.
        partner: the other process.
        send: ``[kind, step, signal]``: at this event the partner gets this signal.
        options: of `elbowroom.lab.trainer.train`.
    """
    told = []

    def observe(event):
        if event.kind == "judging":
            return
        told.append([event.kind, event.step])
        if send is not None and told[-1] == send[:2]:
            os.kill(partner or os.getpid(), signal.Signals[send[2]])

    try:
        outcome = fit([run(**change) for change in runs], output, observer=observe, **options)
    except ElbowroomError as error:
        return {**said(error), "told": told}
    return {"stopped": outcome.stopped, "interrupted": outcome.interrupted, "told": told}


def advance(folder, cases, *, steps, partner=None):
    """Train populations of one run step by step, and go on from their states; return what was seen.

    Args:
        folder: where each process saves the states of all cases.
        cases: changes to the toy run, by name; ``spoil`` is the step at which the second process
            has a loss that is no number.
        steps: how many of each.
        partner: the other process.
    """
    seen = {}
    with joined(CPU) as ranks:
        for name, change in cases.items():
            change = dict(change)
            spoil = change.pop("spoil", None)
            trained, again = (population(run(**change), ranks) for _ in range(2))
            if ranks.rank == 1 and spoil is not None:
                spoiled(trained, spoil)
            seen[name], state = follow(trained, steps)
            order = reversed(state.items()) if ranks.rank else state.items()
            again.load_run_states([dict(order)], trained.done, trained.since)
            assert states_equal(states(again), state), name
            safetensors.torch.save_file(state, Path(folder) / f"{name}-{ranks.rank}.safetensors")
    return seen


def population(config, ranks):
    """Return a population of one as processes share it."""
    kind = Population
    if config.training.parallel == "fsdp" and ranks.world > 1:
        from elbowroom.lab.sharded import ShardedPopulation as kind  # noqa: N813
    return kind([config], corpus(), CPU, rank=ranks.rank, world=ranks.world)


def spoiled(trained, step):
    """Let the loss of a step be no number."""
    losses = trained._losses

    def spoil(*given):
        return losses(*given) * (float("nan") if int(trained.step) == step else 1.0)

    trained._losses = spoil


def follow(trained, steps):
    """Return a report a step, and the state at the end, before and after rows are settled."""
    seen = []
    for _ in range(steps):
        trained.advance(1)
        log = trained.log()
        nll = [x for x in log.nll[0] if x == x]
        seen.append([log.loss[0], log.grad_norm[0], log.kept[0], *nll, int(trained.died_at[0])])
    return seen, states(trained)


def states(trained):
    """Return a copy of the state, before and after rows that wait are settled."""
    state = {name: x.clone() for name, x in trained.run_state(0).items()}
    trained.settle()
    return state | {f"settled.{name}": x for name, x in trained.model_state(0).items()}


def states_equal(a, b):
    """Tell whether all tensors are equal to the bit; NaN is NaN."""
    return a.keys() == b.keys() and all(torch.equal(bits(a[k]), bits(b[k])) for k in a)


def bits(x):
    return x.contiguous().reshape(-1).view(torch.uint8)


def words(folder, *, partner=None):
    """Say everything that processes say to each other; return what each heard."""
    heard = {"launched": is_launched(), "first": is_first()}
    order = Path(folder) / "order"
    with joined(CPU) as ranks:
        heard["ranks"] = [ranks.rank, ranks.world, ranks.local, ranks.is_first]
        with joined(CPU) as inner:
            heard["one"] = inner is ranks
        heard["any"] = [ranks.any(a == ranks.rank or b == ranks.rank) for a, b in PAIRS]
        ranks.same("this", "agreed")
        try:
            ranks.same("this", f"of {ranks.rank}")
        except distributed.RankError as error:
            heard["same"] = str(error)
        plain, tensors = ranks.share(lambda: made(ranks.rank))
        heard["share"] = [plain, {k: [str(x.dtype), x.tolist()] for k, x in tensors.items()}]
        with ranks.one_first():
            time.sleep(0.02 * (1 - ranks.local))
            with order.open("a") as file:
                file.write(str(ranks.rank))
        mine = [torch.full((2, 3), 1.0 + ranks.rank), torch.tensor(5.0 - 4 * ranks.rank)]
        average(mine)
        heard["average"] = [x.tolist() for x in mine]
    try:
        ranks.any(True)
    except distributed.RankError as error:
        heard["after"] = str(error)
    return heard | {"left": not dist.is_initialized()}


PAIRS = ((2, 2), (0, 2), (1, 2), (0, 1))  # who says yes


def made(rank):
    """Return what the first process makes and all have then."""
    tensors = {
        "0/half": torch.tensor([1.5, -2.0]).bfloat16(),
        "0/large": torch.tensor(2**62 + 1),
        "1/empty": torch.zeros(0, 2),
        "1/flags": torch.tensor([[True, False]]),
    }
    return {"by": rank, "number": 0.1, "list": [1, "ä", None]}, tensors


def meet(folder, *, partner=None, fails=False):
    """Join in a group of the caller's; return what is left of it.

    Args:
        folder: for a flag.
        partner: the other process.
        fails: whether the first process fails there, and lives on until the second has heard it.
    """
    rank, heard = int(os.environ.pop("RANK")), Path(folder) / "heard"
    store = dist.TCPStore(os.environ.pop("MASTER_ADDR"), int(os.environ.pop("MASTER_PORT")))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(0, 60))
    found = {"launched": is_launched(), "first": is_first()}
    error = None
    try:
        with joined(CPU) as ranks:
            found["ranks"] = [ranks.rank, ranks.world, ranks.is_first]
            if fails and ranks.is_first:
                raise ZeroDivisionError
            ranks.any(False)
    except ZeroDivisionError as caught:
        error = caught  # whose frames hold on to all that they know
        while not heard.exists():
            time.sleep(0.005)
    except distributed.RankError as caught:
        found |= said(caught)
        heard.touch()
    found["failed"] = error is not None
    total = torch.tensor(1.0 + rank)
    dist.all_reduce(total)  # the caller's group works as before
    dist.destroy_process_group()
    return found | {"total": float(total)}
