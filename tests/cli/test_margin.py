from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from elbowroom import margins
from elbowroom.cli.main import main

Capture = pytest.CaptureFixture[str]


def run(words: str, capsys: Capture) -> str:
    """Run a command line that succeeds, and return what it prints."""
    code = main(words.split())
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def refused(words: str, capsys: Capture) -> str:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    return err


def test_closed_prints_a_plain_line_into_a_pipe(capsys: Capture) -> None:
    out = run("margin closed --vocab-size 100000 --top-p .99 --temperature .9", capsys)
    assert out == "vocab_size: 100000  top_p: 0.99  temperature: 0.9  margin: 14.4972\n"
    assert "margin: 2.9957" in run("margin closed --min-p 0.05", capsys)


def test_closed_as_json(capsys: Capture) -> None:
    got = json.loads(run("margin closed --vocab-size 50257 --top-p .999 --json", capsys))
    assert got["margin"] == margins.top_p(50257, 0.999)
    words = got["provenance"]["command"]
    assert words.startswith("elbowroom margin closed --vocab-size 50257 --top-p 0.999")
    again = json.loads(run(words.removeprefix("elbowroom ") + " --json", capsys))
    assert again["margin"] == got["margin"]


def test_closed_into_a_file(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "new" / "m.json"
    assert "margin: 2.9957" in run(f"margin closed --min-p .05 --output {file}", capsys)
    got = json.loads(file.read_text())
    assert got["margin"] == margins.min_p(0.05)
    assert str(tmp_path) not in file.read_text()


def test_closed_refuses_half_a_question(capsys: Capture) -> None:
    assert "either --top-p" in refused("margin closed", capsys)
    assert "either --top-p" in refused("margin closed --vocab-size 9 --top-p .9 --min-p .1", capsys)
    assert "needs --vocab-size" in refused("margin closed --top-p .9", capsys)
    assert "leave it out" in refused("margin closed --min-p .1 --vocab-size 9", capsys)
    assert "--min-p has to be above 0" in refused("margin closed --min-p 0", capsys)


@pytest.mark.parametrize("command", ["closed --min-p .1", "init gpt2", "effective x.safetensors"])
def test_an_impossible_output_is_refused_before_the_work(
    command: str, tmp_path: Path, capsys: Capture
) -> None:
    assert "got a folder" in refused(f"margin {command} --output {tmp_path}", capsys)
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "m.json"
    assert "no file can be made" in refused(f"margin {command} --output {below}", capsys)


def test_init_is_effective_of_random_weights(capsys: Capture) -> None:
    words = "margin init --vocab-size 300 --width 16 --std .5 --sample 40 --seed 7 --json"
    got = json.loads(run(words, capsys))
    generator = torch.Generator().manual_seed(7)
    weight = torch.empty(300, 16).normal_(0, 0.5, generator=generator)
    expected = margins.effective(weight, torch.nn.LayerNorm(16), sample=40, seed=7)
    (model,) = got["models"]
    assert model["margin"] == pytest.approx(expected.margin, rel=1e-6)
    assert model["alpha"] == pytest.approx(expected.alpha, rel=1e-6)
    assert (model["vocab_size"], model["width"], model["tokens"]) == (300, 16, 40)
    assert got["provenance"]["seed"] == 7
    again = got["provenance"]["command"].removeprefix("elbowroom ") + " --json"
    (repeated,) = json.loads(run(again, capsys))["models"]
    assert repeated["margin"] == model["margin"]


@pytest.mark.slow
def test_init_of_gpt2_shows_the_paper(capsys: Capture) -> None:
    out = run("margin init gpt2 --sample 100", capsys)
    assert "paper: margin: 14.04" in out
    assert "paper: alpha: 0.94" in out
    found = re.search(r"tokens: 100  margin: ([\d.]+)", out)
    assert found
    assert float(found.group(1)) == pytest.approx(14.04, abs=0.02)


def test_init_refuses_half_a_shape(capsys: Capture) -> None:
    assert "name a model" in refused("margin init", capsys)
    assert "go together" in refused("margin init --width 8", capsys)
    assert "at least 2" in refused("margin init --width 8 --vocab-size 1", capsys)
    assert "--std has to be" in refused("margin init --width 8 --vocab-size 9 --std 0", capsys)
    assert "'gpt5'" in refused("margin init gpt5", capsys)
    assert "sample: expected at most" in refused(
        "margin init --width 8 --vocab-size 9 --sample 10", capsys
    )
