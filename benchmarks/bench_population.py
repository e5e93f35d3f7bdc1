"""Training a population: one model on a CPU against the usual way, many models on a GPU.

On a CPU the paper's single model is trained by the lab and by a plain eager loop as nanoGPT has it
(PyTorch's modules, scaled_dot_product_attention, clip_grad_norm_, AdamW), in turns, in one process.
On CUDA populations of several sizes are trained by the lab, with a graph, and one is evaluated::

    python benchmarks/bench_population.py                  # where there is no GPU: the CPU's part
    python benchmarks/bench_population.py --text FILE      # tiny-shakespeare from a file

Writes evidence/population_cpu.json or evidence/speed/population_cuda.json.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from elbowroom.lab.config import RunConfig, run_config
from elbowroom.lab.corpora import Pair, shakespeare
from elbowroom.lab.evaluation import EvaluationConfig, Judge
from elbowroom.lab.population import Population
from elbowroom.lab.tokens import Corpus, prepare
from elbowroom.provenance import provenance, write_json

OURS = {"margin": {"start": 0.3, "end": 16.0}}
TWINS = {
    "margin": {"start": 0.3, "end": 16.0},
    "protect": {"languages": ["lr"]},
    "protect_until": 0.5,
}
CPU_TARGET, CUDA_TARGET, ALONE_TARGET = 0.8, 5.0, 1.0  # ratio; milliseconds a step


class PlainAttention(nn.Module):
    """Attention as a plain module."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend causally."""
        b, t, d = x.shape
        parts = self.qkv(x).split(d, dim=2)
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2) for y in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(b, t, d))


class PlainBlock(nn.Module):
    """A pre-norm block as a plain module."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attention = PlainAttention(width, heads)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after the block."""
        x = x + self.attention(self.norms[0](x))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class PlainGPT(nn.Module):
    """The paper's model as one would write it for a single run."""

    def __init__(self, vocab: int, width: int = 128, heads: int = 4, context: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(4))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, vocab, bias=False)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        """Return the loss."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), target.reshape(-1))


def plain(corpus: Corpus) -> Callable[[int], None]:
    """Return a function that makes steps of the usual loop."""
    text = torch.from_numpy(corpus.train[0].tokens.astype("int64"))
    model = PlainGPT(corpus.vocab_size)
    decay = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))

    def steps(count: int) -> None:
        for _ in range(count):
            starts = torch.randint(len(text) - 65, (12,))
            language = (torch.rand(12) < 0.02).long() * 65
            ids = torch.stack([text[i : i + 64] for i in starts]) + language[:, None]
            target = torch.stack([text[i + 1 : i + 65] for i in starts]) + language[:, None]
            optimizer.zero_grad(set_to_none=True)
            model(ids, target).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return steps


def run(name: str, loss: dict[str, Any] | None = None, seed: int = 0, **more: Any) -> RunConfig:
    values: dict[str, Any] = {"name": name, "loss": loss or {}, **more}
    return run_config(values).with_seed(seed)


def summary(x: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(x, n=10, method="inclusive")
    found = {"median": statistics.median(x), "p20": cuts[1], "p80": cuts[7]}
    return {name: round(value, 4) for name, value in found.items()}


def on_cpu(corpus: Corpus, options: argparse.Namespace) -> dict[str, Any]:
    """Train one model in turns: the usual loop, and the lab with several losses."""
    device = torch.device("cpu")
    methods = {"plain loop": plain(corpus)}
    for name, loss in (("lab, cross-entropy", None), ("lab, margin .3 to 16", OURS)):
        methods[name] = Population([run("one", loss)], corpus, device).advance
    for steps in methods.values():
        steps(5)
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(options.rounds):
        for name, steps in methods.items():
            start = time.perf_counter()
            steps(options.steps)
            times[name].append((time.perf_counter() - start) / options.steps * 1e3)
    rows = []
    for name, taken in times.items():
        ratios = [a / b for a, b in zip(taken, times["plain loop"], strict=True)]
        rows.append({"method": name, "ms_a_step": summary(taken), "ratio": summary(ratios)})
        print(f"{name:24} {rows[-1]['ms_a_step']['median']:8.2f} ms  ratio {summary(ratios)}")
    return {"rows": rows, "target_ratio": CPU_TARGET}


def mixed(count: int, precision: str = "tf32") -> list[RunConfig]:
    """Return runs of the paper's model with several losses, as a study would have."""
    kinds: list[tuple[str, dict[str, Any] | None, dict[str, Any]]] = [
        ("ce", None, {}),
        ("m1", {"margin": 1.0}, {}),
        ("annealed", OURS, {}),
        ("twins", TWINS, {"zero_rows": {"languages": ["lr"]}}),
    ]
    training = {"precision": precision}
    found = []
    for i in range(count):
        name, loss, more = kinds[i % 4]
        found.append(run(name, loss, i // 4, training=training, **more))
    return found


def kernels(population: Population, steps: int = 5) -> dict[str, Any]:
    """Return how many kernels a step launches, what they take, and those that take most."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        population.advance(steps)
        torch.cuda.synchronize()
    found = [
        {"name": x.key[:80], "launches": x.count / steps, "ms": x.device_time_total / steps / 1e3}
        for x in seen.key_averages()
    ]
    found.sort(key=lambda x: -x["ms"])
    launches, busy = (sum(x[key] for x in found) for key in ("launches", "ms"))
    return {"launches": launches, "busy_ms": busy, "most": found[:40]}


def on_cuda(
    corpus: Corpus, options: argparse.Namespace, save: Callable[[dict[str, Any]], object]
) -> dict[str, Any]:
    """Time steps of populations, and the whole of the last with its evaluation.

    What is known is saved as soon as it is: there may not be time for all.
    """
    device, rows = torch.device("cuda"), []
    for precision, count in itertools.product(options.precision, options.runs):
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        population = Population(mixed(count, precision), corpus, device)
        population.advance(20)
        torch.cuda.synchronize()
        ready = round(time.perf_counter() - start, 2)
        taken = []
        for _ in range(options.rounds):
            start = time.perf_counter()
            population.advance(options.steps)
            torch.cuda.synchronize()
            taken.append((time.perf_counter() - start) / options.steps * 1e3)
        row: dict[str, Any] = {"precision": precision, "runs": count, "ms_a_step": summary(taken)}
        row |= {"ready_seconds": ready, "peak_gib": torch.cuda.max_memory_allocated() / 2**30}
        rows.append(row)
        print(row, flush=True)
        if options.kernels:
            row["kernels"] = kernels(population)
            print({key: round(row["kernels"][key], 3) for key in ("launches", "busy_ms")})
        save({"rows": rows})
    count = options.runs[-1]
    start = time.perf_counter()
    judge = Judge(corpus, population.model, [1.0] * count, EvaluationConfig())
    judge.full()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    print(f"evaluation of {count} runs: {seconds:.1f} s")
    whole = rows[-1]["ms_a_step"]["median"] * 8 + seconds
    return {"rows": rows, "evaluation_seconds": seconds, "seconds_for_8000_steps": whole}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, help="tiny-shakespeare, if it is here already")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=20, help="steps a round")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 8, 86], help="on CUDA")
    parser.add_argument("--precision", nargs="+", default=["bf16", "tf32"], help="on CUDA")
    parser.add_argument("--kernels", action="store_true", help="also what each kernel takes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    origin = provenance("python benchmarks/bench_population.py", seed=0)
    corpus = prepare(shakespeare(options.text).paired(Pair()), "characters")
    cuda = torch.cuda.is_available()
    name = "speed/population_cuda.json" if cuda else "population_cpu.json"

    def save(found: dict[str, Any]) -> None:
        write_json(options.output or Path("evidence") / name, found | {"provenance": origin})

    save(on_cuda(corpus, options, save) if cuda else on_cpu(corpus, options))


if __name__ == "__main__":
    main()
