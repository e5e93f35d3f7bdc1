"""Patched models under `transformers.Trainer`: accumulation, mixed sizes, annealing."""

from __future__ import annotations

import builtins
import logging
import math

import pytest
import torch
from torch.utils.data import Dataset

import elbowroom as er
from elbowroom.errors import MissingExtraError
from tests.hf.models import V, model

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' and accelerate's own


class Texts(Dataset):
    """Texts of one length with labels that count to a different number."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        ids = torch.randint(3, V, (8,), generator=torch.Generator().manual_seed(i))
        labels = ids.clone()
        labels[: i % 5] = -100
        return {"input_ids": ids, "labels": labels}


def trained(folder, margin=None, steps=4, callbacks=()):
    """Train with accumulation; return the weights and, if patched, the handle."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    made = model("llama")
    handle = None if margin is None else er.patch(made, margin)
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    callbacks = [make(handle) for make in callbacks]
    trainer = transformers.Trainer(made, settings, train_dataset=Texts(), callbacks=callbacks)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return losses, made.state_dict(), handle


def test_plain_cross_entropy_trains_as_unpatched(tmp_path, capsys):
    losses, weights, handle = trained(tmp_path / "b", math.inf)
    expected_losses, expected, _ = trained(tmp_path / "a")
    assert (handle.fused, handle.materialised) == (8, 0)
    assert losses == pytest.approx(expected_losses, rel=1e-4)
    assert weights.keys() == expected.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)


def test_the_callback_anneals(tmp_path, capsys):
    seen = []

    class Watched(er.margins.Annealed):
        def at(self, progress):
            seen.append(float(progress))
            return super().at(progress)

    trained(tmp_path, Watched(0.5, 4.0), callbacks=[er.hf.progress_callback])
    assert seen == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]


def test_without_transformers(monkeypatch):
    load = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "transformers":
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'elbowroom\[hf\]'"):
        er.hf.progress_callback(er.patch(model("llama"), 1.0))
