"""A small made-up corpus and small models, for the tests of training."""

from __future__ import annotations

import functools
import json
import random

import torch

from elbowroom.lab.config import merge, run_config
from elbowroom.lab.corpora import Document, Pair
from elbowroom.lab.corpora.texts import Texts
from elbowroom.lab.tokens import prepare
from elbowroom.lab.trainer import train

WORDS = ("the", "cat", "sat", "on", "a", "mat", "dog", "ran", "quickly", "up")
BASE = {
    "data": {"sampling": "fixed", "shares": [0.7, 0.3]},
    "model": {"layers": 1, "heads": 2, "width": 16, "context": 8},
    "optimizer": {"lr": 0.01, "min_lr": 0.001, "warmup": 3},
    "training": {"steps": 20, "batch": 4, "log_every": 5, "eval_every": 10, "eval_windows": 3},
    "evaluation": {"windows": 6, "temperatures": 8, "bins": 3},
}
TIMES = ("seconds", "tokens_per_second")


def text(words, seed=0):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


@functools.cache
def corpus(pair=True):
    """Return two languages: a text and its twin, or two texts that share most characters."""
    document = Document.from_text("one", text(800))
    if pair:
        texts = Texts(name="toy", documents={"en": (document,)}).paired(Pair())
    else:
        other = Document.from_text("two", text(300, seed=1).replace("a", "ä").replace("u", "ü"))
        texts = Texts(name="toys", documents={"en": (document,), "de": (other,)})
    return prepare(texts, "characters", context=8)


def run(**change):
    """Return the configuration of a small run with some values changed."""
    return run_config(merge(BASE, change))


def fit(runs, output, **options):
    """Train on the toy corpus."""
    return train(runs, corpus(), output, device="cpu", **options)


def lines(folder):
    """Return the metrics without what depends on the clock."""
    found = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in found]


def weights(folder):
    """Return the bytes of the trained weights."""
    return (folder.path / "model.safetensors").read_bytes()


def same_states(a, b):
    """Tell whether two models' states are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
