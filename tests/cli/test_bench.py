from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from elbowroom.cli import bench
from elbowroom.cli.main import main
from elbowroom.study.speed import peers

Capture = pytest.CaptureFixture[str]
SMALL = "bench --device cpu --tokens 24 --width 8 --vocab 300 --repetitions 2 --peers eager chunked"


def run(words: str, capsys: Capture) -> str:
    """Run a command line that succeeds quietly, and return what it prints."""
    code = main(words.split())
    out, err = capsys.readouterr()
    assert code == 0, err
    assert not err
    return out


def refused(words: str, capsys: Capture) -> str:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    return err


def methods(document: dict[str, Any]) -> list[list[str]]:
    return [[row["method"] for row in one["rows"]] for one in document["measured"]]


def test_a_line_for_every_way(capsys: Capture) -> None:
    lines = run(SMALL, capsys).splitlines()
    names = [re.match(r"method: (.*?)  kept: ", line) for line in lines[:-1]]
    assert [name and name.group(1) for name in names] == [
        *("eager", "chunked", "ours, margin inf"),
        *("ours, 0.1 kept", "ours, 0.01 kept", "ours, 0.001 kept"),
    ]
    assert all(re.search(r"ms: [\d.]+  p20: [\d.]+  p80: [\d.]+  ratio: [\d.]+$", x)
               for x in lines[:-1])  # fmt: skip
    assert lines[-1].startswith("Clustered data, tokens 24, width 8, vocab 300: ratios are to ")
    assert "the fastest dense peer; 'ours, " in lines[-1]


def test_json_can_be_repeated(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "speed.json"
    words = f"{SMALL} --margin inf 2 --share .5 --clustered --scattered --seed 5"
    got = json.loads(run(f"{words} --json --output {file}", capsys))
    assert json.loads(file.read_text()) == got
    assert (
        methods(got)
        == [["eager", "chunked", "ours, margin inf", "ours, margin 2", "ours, 0.5 kept"]] * 2
    )
    assert [one["data"] for one in got["measured"]] == ["clustered", "scattered"]
    assert got["measured"][0]["shape"] == {"tokens": 24, "width": 8, "vocab": 300}
    assert got["measured"][0]["fastest_dense_peer"] in ("eager", "chunked")
    assert (got["device"], got["dtype"]) == ("cpu", "float32")
    assert "torch" in got["packages"]
    assert got["provenance"]["seed"] == 5
    assert str(tmp_path) not in got["provenance"]["command"]
    again = got["provenance"]["command"].removeprefix("elbowroom ") + " --json"
    repeated = json.loads(run(again, capsys))
    assert methods(repeated) == methods(got)
    for a, b in zip(repeated["measured"], got["measured"], strict=True):
        assert [row["kept"] for row in a["rows"]] == [row["kept"] for row in b["rows"]]


def test_two_kinds_of_data_are_told_apart(capsys: Capture) -> None:
    out = run(f"{SMALL} --margin 1 --clustered --scattered", capsys)
    assert "data: clustered  method: eager" in out
    assert "data: scattered  method: ours, margin 1" in out


def test_what_is_missing_or_fails_is_named(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(target: torch.Tensor) -> Any:
        def loss(*_: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no compiler\nand much more")

        return loss

    monkeypatch.setitem(peers.PEERS, "compile", peers.Peer(fails, ""))
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    out = run(f"{SMALL} compile liger cce --share .1", capsys)
    assert "remark: failed: RuntimeError: no compiler\n" in out
    assert "remark: not installed: pip install liger-kernel, and a CUDA device\n" in out
    assert "remark: not installed: pip install cut-cross-entropy" in out
    assert re.search(r"method: eager .* ratio: [\d.]+  remark: –\n", out)


def test_without_any_peer_there_is_no_ratio(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers.importlib.util, "find_spec", lambda name: None)
    out = run(SMALL.replace("eager chunked", "liger --margin 1"), capsys)
    assert "ratio: –" in out
    assert "no ratios" in out.splitlines()[-1]


def test_your_own_states(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "mine.safetensors"
    tensors = {"hidden": torch.randn(9, 8), "weight": torch.randn(50, 8)}
    save_file({**tensors, "target": torch.arange(9)}, file)
    words = f"bench --device cpu --peers eager --repetitions 1 --trained {file}"
    got = json.loads(run(f"{words} --margin 2 --json", capsys))
    assert got["measured"][0]["shape"] == {"tokens": 9, "width": 8, "vocab": 50}
    assert "--trained mine.safetensors" in got["provenance"]["command"]
    assert "brings its own shape" in refused(f"{words} --tokens 3", capsys)
    assert "brings its own shape" in refused(f"{words} --scattered", capsys)
    assert "cannot be read" in refused(words.replace("mine", "none"), capsys)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--tokens 0", "--tokens"),
        ("--vocab 1", "--vocab"),
        ("--repetitions 0", "--repetitions"),
        ("--margin -1", "--margin"),
        ("--margin nan", "--margin has to be at least 0"),
        ("--share 0", "--share has to be above 0"),
        ("--share 2", "--share has to be above 0 and at most 1, got 2"),
        ("--dtype int8", "--dtype"),
        ("--peers quick", "--peers"),
        ("--tokens many", "--tokens"),
        ("--quick", "no option '--quick'"),
    ],
)
def test_bad_values_are_refused(options: str, words: str, capsys: Capture) -> None:
    assert words in refused(f"bench {options}", capsys)


def test_cuda_has_to_be_there(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device here; pass cpu" in refused("bench --device cuda", capsys)


def test_data_that_do_not_fit(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(bench.speed, "synthetic", full)
    assert "the clustered data do not fit; lower --tokens" in refused(SMALL, capsys)


def test_an_impossible_output_is_refused_before_the_work(tmp_path: Path, capsys: Capture) -> None:
    assert "got a folder" in refused(f"bench --output {tmp_path}", capsys)
