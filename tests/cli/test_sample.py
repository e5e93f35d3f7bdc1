from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elbowroom.cli import sample as module
from elbowroom.cli.main import main
from elbowroom.lab.generate import generate
from elbowroom.lab.model import GPT
from elbowroom.lab.tokenizers import Bytes, Characters, Twins
from tests.cli import lab

Capture = pytest.CaptureFixture[str]
RUN = "runs/ours-i0-d0"


@pytest.fixture(autouse=True)
def _there(compared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(compared)


def sample(*arguments: str, capsys: Capture) -> str:
    capsys.readouterr()
    assert main(["sample", RUN, "--tokens", "20", *arguments]) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def test_a_text_begins_with_the_prompt_and_has_a_token_a_character(capsys: Capture) -> None:
    out = sample("--prompt", "the cat", capsys=capsys)
    assert out.startswith("the cat")
    assert len(out) == len("the cat") + 20 + 1


def test_the_seed_decides(capsys: Capture) -> None:
    first = sample("--prompt", "the", capsys=capsys)
    assert sample("--prompt", "the", "--seed", "0", capsys=capsys) == first
    assert sample("--prompt", "the", "--seed", "1", capsys=capsys) != first
    certain = [
        sample("--prompt", "the", "--temperature", "0", "--seed", x, capsys=capsys) for x in "12"
    ]
    assert certain[0] == certain[1]
    for one in (("--top-k", "1"), ("--top-p", "0.001"), ("--min-p", "1")):
        assert sample("--prompt", "the", *one, capsys=capsys) == certain[0]


def test_several_texts_have_numbers_and_the_first_is_the_one(capsys: Capture) -> None:
    one = sample("--prompt", "the", capsys=capsys)
    out = sample("--prompt", "the", "--samples", "3", capsys=capsys)
    texts = [text.split("\n", 1)[1] for text in out.split("--- ")[1:]]
    assert [text.split("\n")[0] for text in out.split("--- ")[1:]] == ["1", "2", "3"]
    assert texts[0] == one
    assert len(set(texts)) == 3


def test_the_second_language_of_a_pair_is_another_prompt(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[torch.Tensor] = []

    def spy(model: GPT, ids: torch.Tensor, **options: Any) -> Iterator[torch.Tensor]:
        prompts.append(ids)
        return generate(model, ids, **options)

    monkeypatch.setattr(module, "generate", spy)
    assert sample("--prompt", "the cat", capsys=capsys).startswith("the cat")
    assert sample("--prompt", "the cat", "--second", capsys=capsys).startswith("the cat")
    vocabulary = len(set(Path("texts/en.txt").read_text(encoding="utf-8")))
    assert prompts[0].max() < vocabulary
    assert torch.equal(prompts[1], prompts[0] + vocabulary)


def test_without_a_prompt_it_begins_with_white_space_that_it_knows(capsys: Capture) -> None:
    assert len(sample(capsys=capsys)) == 1 + 20 + 1  # a space: these texts have one line
    assert sample(capsys=capsys).startswith(" ")
    assert module.beginning(Bytes(), second=False).tolist() == [10]
    assert module.beginning(Characters("ab"), second=False).tolist() == [0]
    assert module.beginning(Twins(Characters("ab")), second=True).tolist() == [2]


def test_bytes_appear_as_whole_characters(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab.train("--data.tokenizer", "bytes", "--quiet", steps=1) == 0
    capsys.readouterr()
    written: list[str] = []
    monkeypatch.setattr(sys.stdout, "write", written.append)
    options = ["--tokens", "60", "--temperature", "3"]
    assert main(["sample", "runs/run-i0-d0", "--prompt", "ä", *options]) == 0
    *pieces, _rest, end = written
    assert pieces[0] == "ä"
    assert end == "\n"
    assert not any(piece.endswith("\ufffd") for piece in pieces)
    line = lab.line_of_error(["sample", "runs/run-i0-d0", "--second"], capsys)
    assert "--second: this run has no simulated second language" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([RUN, "--prompt", "thé"], "--prompt: expected characters among the 20"),
        ([RUN, "--prompt", "thé"], "got 'é' at character 2; leave it out"),
        ([RUN, "--prompt", ""], "--prompt: expected some text to begin with"),
        ([RUN, "--tokens", "0"], "--samples and --tokens: expected at least 1"),
        ([RUN, "--samples", "0"], "--samples and --tokens: expected at least 1"),
        ([RUN, "--temperature", "-1"], "temperature: expected a finite number, at least 0"),
        ([RUN, "--top-p", "2"], "top_p: expected a finite number, above 0, at most 1, got 2"),
        ([RUN, "--top-k", "0"], "top_k: expected an integer, at least 1"),
        ([RUN, "--min-p", "2"], "min_p: expected"),
        ([RUN, "--device", "tpu"], "--device: expected cpu, cuda or cuda:N"),
        (["absent"], "absent: no runs here"),
        (["runs"], "runs: name one run in it: runs/ce-tied-i0-d0, runs/ce-tied-i1-d1"),
        ([], "elbowroom sample --help"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str, capsys: Capture) -> None:
    assert words in lab.line_of_error(["sample", *arguments], capsys)


def test_many_runs_are_not_all_named(tmp_path: Path, capsys: Capture) -> None:
    for i in range(8):
        (tmp_path / f"{i}").mkdir()
        shutil.copy(f"{RUN}/config.yaml", tmp_path / f"{i}")
    assert lab.line_of_error(["sample", str(tmp_path)], capsys).endswith("5 and 2 more\n")
    line = lab.line_of_error(["sample", str(tmp_path / "0")], capsys)
    assert "tokenizer.json: cannot be read" in line
