"""From runs' folders to the page: maps of heads, and runs that are not there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from elbowroom.lab.folder import RunFolder
from elbowroom.report import runs as module
from elbowroom.report.runs import head_matrix, report_of
from tests.lab import toy


def folder(path: Path, pair: bool = True, **change) -> RunFolder:
    """Return the folder of a run that made two steps."""
    config = toy.run(**{"training": {"steps": 2}, **change})
    outcome = toy.train([config], toy.corpus(pair), path, device="cpu")
    return outcome.folders[0]


def test_the_head_with_its_tokens_languages_and_translations(tmp_path: Path) -> None:
    made, corpus = folder(tmp_path), toy.corpus()
    head = head_matrix("ours", made, corpus)
    size = corpus.vocab_size
    assert head.name == "ours, seed 0"
    assert np.array_equal(head.weight, made.load_model()[0]["embedding"].numpy())
    assert head.languages == ["hr"] * (size // 2) + ["lr"] * (size // 2)
    assert head.tokens[: size // 2] == head.tokens[size // 2 :]
    assert sorted(map(tuple, head.pairs)) == [(i + size // 2, i) for i in range(size // 2)]


def test_untied_models_show_their_head_and_shared_tokens_no_language(tmp_path: Path) -> None:
    made, corpus = folder(tmp_path, pair=False, model={"tied": False}), toy.corpus(pair=False)
    head = head_matrix("ce", made, corpus)
    tensors = made.load_model()[0]
    assert np.array_equal(head.weight, tensors["output"].numpy())
    assert not np.array_equal(head.weight, tensors["embedding"].numpy())
    by_token = dict(zip(head.tokens, head.languages, strict=True))
    assert by_token["ä"] == "de"
    assert by_token["t"] is None
    assert head.pairs == []


def test_large_vocabularies_show_their_first_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_POINTS", 5)
    head = head_matrix("ours", folder(tmp_path), toy.corpus())
    assert head.weight.shape == (5, 16)
    assert len(head.tokens) == len(head.languages) == 5


def test_a_map_a_method_and_unfinished_runs_left_out(tmp_path: Path) -> None:
    folders = [
        folder(tmp_path, name=name, init_seed=seed, data_seed=seed)
        for name in ("ce", "ours")
        for seed in (0, 1)
    ]
    wild = folder(tmp_path, name="wild", optimizer={"lr": 1e29, "warmup": 0})
    missing = RunFolder(tmp_path / "never-i0-d0")
    page = report_of(
        [*folders, wild, missing], toy.corpus(), tmp_path / "r.html", references=("ce",)
    )
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r'id="map-\d-title">([^<]*)<', text)
    assert len(titles) == 2
    assert "ce, seed 0" in titles[0]
    assert "ours, seed 0" in titles[1]
    assert "1 of 5 runs did not finish" in text
    assert "never" not in text
