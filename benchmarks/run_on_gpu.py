"""All that a GPU must tell us, part by part: tests, sanitizers, sizes, speed.

Each part runs in a process of its own with a limit of its own, and what it says goes to
``parts.log``; a part that fails or runs out of time does not keep the next from running. Results
are files in ``--output``. What lies in ``--earlier`` is taken along first, so that the benchmarks
go on where they stopped::

    python benchmarks/run_on_gpu.py --output OUT --parts facts smoke tests sanitizers sweep
    python benchmarks/run_on_gpu.py --output OUT --earlier BEFORE --parts sweep loss
    python benchmarks/run_on_gpu.py --output OUT --earlier BEFORE --parts rows population loss

pytest, where the machine lacks it, and the peers may lie in a folder ``.peers``::

    pip install --no-deps --target .peers liger-kernel cut-cross-entropy
    pip install --target .peers pytest pytest-timeout pytest-xdist

Benchmarks run with the sizes that the sweep found, if ``settings.json`` is in the output. Numbers
that are to be evidence are measured again once these stand in ``losses/kernels/settings.py``.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
RESULTS = ("settings.json", "sweep.csv", "loss_cuda.csv", "loss_cuda.json")
TAIL = 25  # lines of a part that are shown
RESERVE = 15  # seconds kept for writing
Command = list[str]


def python(*words: object) -> Command:
    return [sys.executable, *map(str, words)]


def benchmark(args: argparse.Namespace, name: str, *words: object) -> Command:
    """Return the command of a benchmark with the sizes that were found."""
    return python(__file__, "--output", args.output, "--run", HERE / name, "--", *words)


def facts(args: argparse.Namespace, seconds: float) -> list[Command]:
    code = (
        "import torch, triton, platform, importlib.util as u; print(platform.python_version(), "
        "torch.__version__, triton.__version__, torch.cuda.get_device_properties(0)); "
        "print({x: bool(u.find_spec(x)) for x in ('pytest', 'xdist', 'pytest_timeout', 'jaxtyping',"
        " 'safetensors', 'yaml', 'rich', 'beartype', 'liger_kernel', 'cut_cross_entropy')})"
    )
    return [["nvidia-smi"], python("-c", code)]


def smoke(args: argparse.Namespace, seconds: float) -> list[Command]:
    return [python(__file__, "--output", args.output, "--check")]


def tests(args: argparse.Namespace, seconds: float) -> list[Command]:
    """Run the GPU tests, the loss's last: most kernels are compiled there."""
    if importlib.util.find_spec("pytest") is None:
        return [python("-c", "print('no pytest: see --help')")]
    many = importlib.util.find_spec("xdist") is not None
    options = [
        "-q",
        "-o",
        "addopts=",
        "-o",
        "filterwarnings=default",
        "--durations=5",
        "--tb=short",
    ]
    options += ["-n", "12"] if many else []
    if importlib.util.find_spec("pytest_timeout") is not None:
        options += ["--timeout", str(int(seconds / 2))]
    return [python("-m", "pytest", *options, *args.tests)]


def sanitizers(args: argparse.Namespace, seconds: float) -> list[Command]:
    """Look for bad accesses and races on small shapes, where the tool is there."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        return [python("-c", "print('no compute-sanitizer')")]
    check = python(__file__, "--output", args.output, "--check")
    return [
        [tool, "--tool", name, "--kernel-regex", "kns=_kernel", "--print-limit", "20", *check]
        for name in ("memcheck", "racecheck")
    ]


def sweep(args: argparse.Namespace, seconds: float) -> list[Command]:
    path = args.output / "sweep.csv"
    words = ["--output", path, "--max-minutes", seconds / 60]
    return [python(HERE / "sweep_loss_cuda.py", *words)]


def loss(args: argparse.Namespace, seconds: float) -> list[Command]:
    words = ["--output", args.output / "loss_cuda.csv", "--max-minutes", seconds / 60]
    words += ["--trained", args.trained] if args.trained else []
    return [benchmark(args, "bench_loss_cuda.py", *words, *args.loss)]


def rows(args: argparse.Namespace, seconds: float) -> list[Command]:
    return [
        python(HERE / "bench_row_adamw_cuda.py", "--output", args.output / "row_adamw_cuda.csv")
    ]


def population(args: argparse.Namespace, seconds: float) -> list[Command]:
    words = ["--kernels", "--runs", 1, 86, "--output", args.output / "population_cuda.json"]
    words += ["--text", args.text] if args.text else []
    return [python(HERE / "bench_population.py", *words)]


# Each with the share of the time that is left when its turn comes, and its limit in seconds.
PARTS: dict[str, tuple[Callable[[argparse.Namespace, float], list[Command]], float, float]] = {
    "facts": (facts, 0.2, 40),
    "smoke": (smoke, 0.3, 90),
    "tests": (tests, 0.5, 240),
    "sanitizers": (sanitizers, 0.4, 100),
    "sweep": (sweep, 0.9, 330),
    "loss": (loss, 1.0, 560),
    "rows": (rows, 0.4, 120),
    "population": (population, 0.7, 260),
}


def run(command: Command, log: Path, limit: float) -> str:
    """Run a command, its output to the log, and end it and all it started at the limit."""
    start = log.stat().st_size if log.exists() else 0
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    paths = [str(ROOT / "src"), str(ROOT), str(ROOT / ".peers"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(x for x in paths if x)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            code: object = process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = f"none, stopped after {limit:.0f} s"
    with log.open("rb") as file:
        file.seek(start)
        lines = file.read().decode(errors="replace").splitlines()
    print("\n".join(lines[-TAIL:]))
    return str(code)


def check() -> None:
    """Compare the loss on small shapes with the reference: every way, every option, once."""
    import torch

    import elbowroom as er
    from elbowroom import variants
    from elbowroom.losses import fused

    fused.BUDGET = 2**20
    worst: dict[str, float] = {}
    kinds = [None, variants.Softminus(), variants.DetachedBelow(), variants.Decoupled(),
             variants.Leaky(0.2)]  # fmt: skip
    for dtype in (torch.bfloat16, torch.float32):
        for variant in kinds:
            for margin in (1.0, 6.0, float("inf")):
                torch.manual_seed(0)
                n, d, v = 300, 80, 3001
                hidden, weight = torch.randn(n, d, device="cuda"), torch.randn(v, d, device="cuda")
                hidden, weight = hidden.to(dtype), (weight / 4).to(dtype)
                target = (hidden @ weight.T).topk(8).indices[:, 7]
                target[::11] = -100
                found = []
                for backend, kind in (("triton", dtype), ("reference", torch.float64)):
                    x, w = (t.to(kind).requires_grad_() for t in (hidden, weight))
                    value = er.linear_thresholded_cross_entropy(
                        x, w, target, margin, variant=variant, backend=backend
                    )
                    found.append([value.detach(), *torch.autograd.grad(value, (x, w))])
                for name, a, b in zip(("loss", "hidden", "weight"), *found, strict=True):
                    error = float((a.double() - b).norm() / b.norm())
                    key = f"{dtype} {name}"
                    worst[key] = max(worst.get(key, 0.0), error if error == error else 9e9)
    torch.cuda.synchronize()
    for key, error in worst.items():
        print(f"{key}: relative error at most {error:.1e}")


def run_with_settings(args: argparse.Namespace) -> None:
    """Run a benchmark in this process, with the sizes that the sweep found."""
    path = args.output / "settings.json"
    if path.exists():
        sys.path.insert(0, str(HERE))
        from elbowroom.losses.kernels import settings
        from sweep_loss_cuda import read_settings

        settings.CHOSEN = read_settings(path)
        print(f"with {settings.CHOSEN}")
    sys.argv = [args.run, *args.words]
    runpy.run_path(args.run, run_name="__main__")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for all results")
    parser.add_argument("--earlier", type=Path, help="folder with results of an earlier call")
    parser.add_argument("--parts", choices=tuple(PARTS), nargs="+", default=list(PARTS))
    parser.add_argument("--max-minutes", type=float, default=9.5)
    parser.add_argument("--tests", nargs="+", default=["tests/gpu"], help="which tests")
    parser.add_argument("--trained", type=Path, help="hidden states for the loss's benchmark")
    parser.add_argument("--text", type=Path, help="tiny-shakespeare, for the population")
    parser.add_argument("--loss", nargs="*", default=[], help="more words for bench_loss_cuda.py")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    began, args = time.monotonic(), parse()
    args.output = args.output.resolve()
    if args.check:
        return check()
    if args.run:
        return run_with_settings(args)
    args.output.mkdir(parents=True, exist_ok=True)
    for name in RESULTS if args.earlier else ():
        if (args.earlier / name).exists() and not (args.output / name).exists():
            shutil.copy(args.earlier / name, args.output / name)
    deadline = began + 60 * args.max_minutes - RESERVE
    log = args.output / "parts.log"
    for name in args.parts:
        make, share, most = PARTS[name]
        seconds = min(most, share * (deadline - time.monotonic()))
        last = name == args.parts[-1]
        seconds = deadline - time.monotonic() if last else seconds
        if seconds < 12:
            print(f"== {name}: no time is left")
            continue
        end = time.monotonic() + seconds
        commands = make(args, seconds - 10)
        for number, command in enumerate(commands):
            left = (end - time.monotonic()) / (len(commands) - number)
            start = time.monotonic()
            print(f"== {name}, at most {left:.0f} s", flush=True)
            code = run(command, log, left)
            print(f"== {name}: {time.monotonic() - start:.0f} s, exit {code}", flush=True)
    return None


if __name__ == "__main__":
    main()
