"""A judge's record by hand: a loop over tokens, windows and languages, in float64."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from elbowroom.lab.evaluation import EvaluationConfig
from elbowroom.lab.model import GPT, ModelConfig
from tests.lab.reference import Reference
from tests.lab.toy import corpus

T = 8
SCALES = [1.0, 2.5, 0.4]
CONFIG = EvaluationConfig(temperatures=20, bins=3)


@functools.cache
def trained(pair, **options):
    """Return runs that know the first half of the held-out text better than the second."""
    texts = corpus(pair)
    shape = {"layers": 1, "heads": 2, "width": 8, "context": T, "vocab_size": texts.vocab_size}
    made = GPT(ModelConfig(**shape, init_std=0.3, **options), range(3))
    cut = [torch.from_numpy(s.ids(0, len(s) // 2 // T * T + 1)) for s in texts.validation]
    ids, target = (
        torch.cat([text[i : len(text) - 1 + i].view(-1, T) for text in cut]) for i in (0, 1)
    )
    optimizer = torch.optim.Adam(made.parameters(), lr=0.03)
    scale = torch.tensor(SCALES)[:, None, None]
    for _ in range(40):
        z = made(ids.expand(3, -1, -1)).flatten(1, 2) @ made.head.mT
        z = z if made.bias is None else z + made.bias[:, None]
        y = target.flatten().repeat(3)
        optimizer.zero_grad()
        F.cross_entropy((scale * z).flatten(0, 1), y, reduction="sum").backward()
        optimizer.step()
    return made


def model(pair=True, runs=3, **options):
    return trained(pair, **options).select(range(runs))


def bins_of(pair=True):
    return torch.arange(corpus(pair).vocab_size) % 3


def starts(length, count=None):
    """Return where windows begin: side by side, or a few spread evenly."""
    all_of_them = [at for at in range(0, length, T) if at + T < length]
    if count is None or count >= len(all_of_them):
        return all_of_them
    gaps = max(count - 1, 1)
    return [all_of_them[round(i * (len(all_of_them) - 1) / gaps)] for i in range(count)]


def tokens_of(texts, plain, scale, language, count, temperatures):
    """Return what is known of each token, window by window."""
    groups, sizes = texts.group_of_token, texts.byte_lengths
    text = torch.from_numpy(texts.validation[language].ids())
    for at in starts(len(text), count):
        logits = plain(text[None, at : at + T])[1][0] * scale
        for z, y in zip(logits, text[at + 1 : at + T + 1].tolist(), strict=True):
            p = z.softmax(-1)
            strangers = (groups != groups[y]) & (groups >= 0) & (groups[y] >= 0)
            yield {
                "target": y,
                "nll": -p[y].log().item(),
                "rank": 1 + (z > z[y]).sum().item(),
                "confidence": p.max().item(),
                "foreign": p[torch.from_numpy(strangers)].sum().item(),
                "native": groups[y] >= 0,
                "bytes": int(sizes[y]),
                "sweep": [-(z / t).log_softmax(-1)[y].item() for t in temperatures],
            }


def calibration_error(tokens):
    error = 0.0
    for b in range(15):
        inside = [t for t in tokens if b / 15 < t["confidence"] <= (b + 1) / 15]
        gap = sum(t["confidence"] - (t["rank"] == 1) for t in inside)
        error += abs(gap) / len(tokens)
    return error


def summary(tokens, temperatures):
    """Return the scores of some tokens."""
    n = len(tokens)
    if not n:
        return {"tokens": 0}
    ranks = [t["rank"] for t in tokens]
    nll = sum(t["nll"] for t in tokens) / n
    sweep = np.mean([t["sweep"] for t in tokens], 0)
    native = [t["foreign"] for t in tokens if t["native"]]
    found = {
        "tokens": n,
        "nll": nll,
        "ppl": math.exp(nll),
        "accuracy": ranks.count(1) / n,
        "mrr": sum(1 / r for r in ranks) / n,
        "rank": sum(ranks) / n,
        "recall@1": sum(r <= 1 for r in ranks) / n,
        "recall@5": sum(r <= 5 for r in ranks) / n,
        "calibration_error": calibration_error(tokens),
        "bits_per_byte": nll * n / math.log(2) / sum(t["bytes"] for t in tokens),
        "best_ppl": math.exp(sweep.min()),
        "best_temperature": temperatures[sweep.argmin()],
        "nll_by_temperature": sweep.tolist(),
    }
    return found | ({"foreign_mass": sum(native) / len(native)} if native else {})


def fitted(tokens, temperatures):
    """Return the perplexity of each half of the windows, at the other's best temperature."""
    windows = len(tokens) // T
    if windows < 2:
        return {}
    cut = (windows + 1) // 2 * T
    halves = [np.array([t["sweep"] for t in part]) for part in (tokens[:cut], tokens[cut:])]
    chosen = [half.mean(0).argmin() for half in halves]
    nll = halves[0][:, chosen[1]].sum() + halves[1][:, chosen[0]].sum()
    found = [temperatures[i] for i in chosen]
    return {"fitted_ppl": math.exp(nll / len(tokens)), "fitted_temperature": sum(found) / 2}


def isotropies(rows):
    """Return the value over both signs of all directions, and all values over one sign of each."""
    directions = np.linalg.eigh(rows.T @ rows)[1].T
    z = [[np.exp(rows @ a).sum(), np.exp(-rows @ a).sum()] for a in directions]
    either = {min(signs) / max(signs) for signs in itertools.product(*z)}
    return np.min(z) / np.max(z), np.array(sorted(either))


def by_hand(texts, of, r, bins, count=None):
    """Return one run's record."""
    temperatures = CONFIG.sweep()
    plain = Reference(of.config, {n: x.double() for n, x in of.run_state(r).items()})
    record = {}
    with torch.no_grad():
        for i, language in enumerate(texts.languages):
            tokens = list(tokens_of(texts, plain, SCALES[r], i, count, temperatures))
            record[language] = summary(tokens, temperatures) | fitted(tokens, temperatures)
            parts = [[t for t in tokens if bins[t["target"]] == b] for b in range(3)]
            record[language]["bins"] = [summary(part, temperatures) for part in parts]
            for part in record[language]["bins"]:
                part.pop("nll_by_temperature", None)
    return record


def close(found, expected, where=""):
    """Compare two records; isotropy is compared apart."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name in expected:
            close(found[name], expected[name], f"{where}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, pair in enumerate(zip(found, expected, strict=True)):
            close(*pair, f"{where}[{i}]")
    else:
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-6), where
