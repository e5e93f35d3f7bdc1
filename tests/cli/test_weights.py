"""`elbowroom margin effective` and the reading of weights behind it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from elbowroom import margins
from elbowroom.cli.main import main

Capture = pytest.CaptureFixture[str]
V, D = 40, 8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gpt2(prefix: str = "transformer.") -> dict[str, Tensor]:
    return {
        f"{prefix}wte.weight": drawn(V, D),
        f"{prefix}wpe.weight": drawn(V, D, seed=1),
        f"{prefix}h.0.ln_f.weight": torch.ones(D),
        f"{prefix}ln_f.weight": drawn(D, seed=2),
        f"{prefix}ln_f.bias": drawn(D, seed=3),
    }


def llama() -> dict[str, Tensor]:
    return {
        "model.embed_tokens.weight": drawn(V, D),
        "model.layers.0.input_layernorm.weight": torch.ones(D),
        "model.norm.weight": drawn(D, seed=2),
    }


def saved(folder: Path, tensors: dict[str, Tensor], config: object = None) -> Path:
    path = folder / "model.safetensors"
    save_file(tensors, path)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return path


def found(words: str, capsys: Capture) -> dict[str, object]:
    code = main(["margin", "effective", *words.split(), "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    result: dict[str, object] = json.loads(out)
    return result


def refused(words: str, capsys: Capture) -> str:
    assert main(["margin", "effective", *words.split()]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    return err


def agrees(got: dict[str, object], weight: Tensor, norm: margins.FinalNorm) -> None:
    expected = margins.effective(weight, norm)
    assert got["margin"] == pytest.approx(expected.margin, rel=1e-5)
    assert got["alpha"] == pytest.approx(expected.alpha, rel=1e-5)


@pytest.mark.parametrize("prefix", ["", "transformer.", "base.model."])
def test_gpt2(prefix: str, tmp_path: Path, capsys: Capture) -> None:
    tensors = gpt2(prefix)
    got = found(str(saved(tmp_path, tensors, {"layer_norm_epsilon": 1e-3})), capsys)
    weight, bias = tensors[f"{prefix}ln_f.weight"], tensors[f"{prefix}ln_f.bias"]
    agrees(got, tensors[f"{prefix}wte.weight"], margins.FinalNorm("layer", weight, bias, 1e-3))
    assert got["embedding"] == f"{prefix}wte.weight"
    assert got["norm"] == f"{prefix}ln_f.weight"
    assert got["shape"] == [V, D]
    assert got["files"] == ["model.safetensors"]


def test_llama_in_bfloat16(tmp_path: Path, capsys: Capture) -> None:
    tensors = {name: x.bfloat16() for name, x in llama().items()}
    got = found(str(saved(tmp_path, tensors, {"rms_norm_eps": 1e-5})), capsys)
    gamma = tensors["model.norm.weight"].float()
    norm = margins.FinalNorm("rms", gamma, None, 1e-5)
    agrees(got, tensors["model.embed_tokens.weight"], norm)


@pytest.mark.parametrize(
    "config", [{"model_type": "gemma2"}, {"text_config": {"model_type": "gemma3_text"}}]
)
def test_gemma_adds_one(config: object, tmp_path: Path, capsys: Capture) -> None:
    got = found(str(saved(tmp_path, llama(), config)), capsys)
    assert got["norm_offset"] == 1.0
    norm = margins.FinalNorm("rms", 1 + llama()["model.norm.weight"], None, 1e-6)
    agrees(got, llama()["model.embed_tokens.weight"], norm)
    again = found(f"{tmp_path / 'model.safetensors'} --norm-offset 0", capsys)
    assert again["margin"] != got["margin"]


def test_the_head_comes_before_the_input_embedding(tmp_path: Path, capsys: Capture) -> None:
    tensors = llama() | {"lm_head.weight": drawn(V, D, seed=9)}
    got = found(str(saved(tmp_path, tensors)), capsys)
    assert got["embedding"] == "lm_head.weight"


def test_several_files_make_one_model(tmp_path: Path, capsys: Capture) -> None:
    whole = found(str(saved(tmp_path, llama())), capsys)
    names = []
    for i, (name, tensor) in enumerate(llama().items()):
        save_file({name: tensor}, tmp_path / f"part-{i}.safetensors")
        names.append(str(tmp_path / f"part-{i}.safetensors"))
    assert found(" ".join(names), capsys)["margin"] == whole["margin"]


def test_names_kind_and_eps_may_be_given(tmp_path: Path, capsys: Capture) -> None:
    path = saved(tmp_path, {"a": drawn(V, D), "b": drawn(D, seed=1), "c": drawn(V, D, seed=2)})
    got = found(f"{path} --embedding c --norm b --norm-kind layer --eps .01 --quantile .2", capsys)
    expected = margins.effective(
        drawn(V, D, seed=2), margins.FinalNorm("layer", drawn(D, seed=1), None, 0.01), 0.2
    )
    assert got["margin"] == pytest.approx(expected.margin, rel=1e-5)
    command = str(got["provenance"]["command"])  # type: ignore[index]
    assert str(tmp_path) not in command
    words = command.removeprefix("elbowroom margin effective ").replace(
        "model.safe", f"{path.parent}/model.safe"
    )
    assert found(words, capsys)["margin"] == got["margin"]


@pytest.mark.parametrize(
    ("norm", "config", "kind", "eps"),
    [
        ("ln_f", {}, "layer", 1e-5),
        ("model.final_layernorm", {"layer_norm_eps": 1e-4}, "layer", 1e-4),
        ("model.norm", {}, "rms", 1e-6),
        ("model.norm", {"layer_norm_eps": 1e-4}, "layer", 1e-4),
    ],
)
def test_how_a_norm_without_bias_is_understood(
    norm: str, config: object, kind: str, eps: float, tmp_path: Path, capsys: Capture
) -> None:
    tensors = {"wte.weight": drawn(V, D), f"{norm}.weight": torch.ones(D)}
    got = found(str(saved(tmp_path, tensors, config)), capsys)
    assert (got["norm_kind"], got["eps"]) == (kind, eps)


def test_plain_lines_say_what_was_chosen(tmp_path: Path, capsys: Capture) -> None:
    assert main(["margin", "effective", str(saved(tmp_path, gpt2()))]) == 0
    out = capsys.readouterr().out
    assert "transformer.ln_f.weight (layer, eps 1e-05)" in out


def test_several_or_no_candidates(tmp_path: Path, capsys: Capture) -> None:
    path = saved(tmp_path, gpt2() | {"encoder.wte.weight": drawn(V, D)})
    line = refused(str(path), capsys)
    assert "pass --embedding NAME: encoder.wte.weight, transformer.wte.weight" in line
    path = saved(tmp_path, {"wte.weight": drawn(V, D), "odd": torch.ones(D)})
    line = refused(str(path), capsys)
    assert "found no final norm by its usual names; pass --norm NAME: odd, wte.weight" in line
    assert "no tensor 'x'; there are odd, wte.weight" in refused(
        f"{path} --embedding x --norm odd", capsys
    )


def test_long_lists_are_cut(tmp_path: Path, capsys: Capture) -> None:
    path = saved(tmp_path, {f"x{i:02}": torch.ones(D) for i in range(20)})
    assert refused(str(path), capsys).rstrip().endswith("x11 and 8 more")


def test_files_that_are_none(tmp_path: Path, capsys: Capture) -> None:
    assert "at least one" in refused("", capsys)
    assert "no such file" in refused(str(tmp_path / "nothing.safetensors"), capsys)
    assert "got a folder; it has no .safetensors" in refused(str(tmp_path), capsys)
    path = saved(tmp_path, gpt2())
    assert "got a folder; name the files in it: model.safetensors" in refused(str(tmp_path), capsys)
    whole = path.read_bytes()
    for broken in (b"", whole[:20], whole[:-1], b"not a model at all, but a text"):
        path.write_bytes(broken)
        assert "not a safetensors file, or a damaged one" in refused(str(path), capsys)


def test_dtypes_that_are_none(tmp_path: Path, capsys: Capture) -> None:
    path = saved(tmp_path, llama() | {"model.embed_tokens.weight": torch.ones(V, D).char()})
    assert "model.embed_tokens.weight: expected float64" in refused(str(path), capsys)


@pytest.mark.usefixtures("unchecked")
def test_shapes_that_do_not_fit(tmp_path: Path, capsys: Capture) -> None:
    path = saved(tmp_path, llama() | {"model.norm.weight": torch.ones(D + 1)})
    assert "norm.weight: expected shape (8,)" in refused(str(path), capsys)
    path = saved(tmp_path, llama() | {"model.embed_tokens.weight": torch.ones(D)})
    assert "weight: expected [V, D]" in refused(str(path), capsys)


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_damaged_configuration(text: str, tmp_path: Path, capsys: Capture) -> None:
    path = saved(tmp_path, llama())
    (tmp_path / "config.json").write_text(text)
    assert "config.json" in refused(str(path), capsys)
