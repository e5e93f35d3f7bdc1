"""How much longer ``import elbowroom`` takes than ``import torch``, which it cannot do without.

Fresh processes, in turns, so that what else the machine does hits both alike::

    python benchmarks/bench_import.py

Writes evidence/import.json. The ratio of medians is to stay under 1.3.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

from elbowroom.provenance import provenance, write_json

MODULES = ("torch", "elbowroom")
TARGET = 1.3


def seconds(module: str) -> float:
    """Return how long a fresh interpreter takes to start, import a module and end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=15, help="how often each is imported")
    parser.add_argument("--output", type=Path, default=Path("evidence/import.json"))
    options = parser.parse_args()
    for module in MODULES:  # fills the file cache, and Python's own
        seconds(module)
    times: dict[str, list[float]] = {module: [] for module in MODULES}
    for _ in range(options.pairs):
        for module in MODULES:
            times[module].append(seconds(module))
    median = {module: statistics.median(values) for module, values in times.items()}
    ratio = median["elbowroom"] / median["torch"]
    record = {
        "what": "seconds to start Python, import the module and end",
        "pairs": options.pairs,
        "median": {module: round(value, 4) for module, value in median.items()},
        "ratio": round(ratio, 4),
        "target": TARGET,
        "seconds": {module: [round(x, 4) for x in values] for module, values in times.items()},
        "provenance": provenance(f"python benchmarks/bench_import.py --pairs {options.pairs}"),
    }
    write_json(options.output, record)
    print(
        f"import torch {median['torch']:.2f} s, import elbowroom {median['elbowroom']:.2f} s, ",
        end="",
    )
    print(f"ratio {ratio:.3f} (target: under {TARGET})")


if __name__ == "__main__":
    main()
