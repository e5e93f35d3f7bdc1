"""Evaluate trained runs on held-out text, language by language.

RUN is a run's folder, or one with several. The text is the run's own. All of it is used unless
--windows says less.

For example:

elbowroom evaluate runs/compare

elbowroom evaluate runs/train/run-i0-d0 --windows 200 --json
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from elbowroom.cli.show import Integer, Output, progress
from elbowroom.cli.train import Device, load_corpus
from elbowroom.errors import FileError
from elbowroom.lab.config import RunConfig
from elbowroom.lab.evaluation import EvaluationConfig, Judge
from elbowroom.lab.folder import RunFolder, run_folders
from elbowroom.lab.model import GPT
from elbowroom.lab.tokens import Corpus

COLUMNS = ("ppl", "fitted_ppl", "accuracy", "recall@5", "mrr", "bits_per_byte", "isotropy_signfree")
SPARE = ("isotropy_signfree", "recall@5", "mrr", "fitted_ppl", "accuracy")


@dataclass(kw_only=True)
class Command(Output, Device):
    """The command's arguments."""

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The folder of a run, or of several."""
    windows: Integer = None
    """Windows a language; all of the held-out text if left out."""
    temperatures: int = EvaluationConfig.temperatures
    """Temperatures of the sweep, from 2 / N to 2."""
    offline: bool = False
    """Download nothing."""

    def run(self) -> None:
        """Evaluate and show."""
        self.begin()
        device = self.place()
        settings = EvaluationConfig(windows=self.windows, temperatures=self.temperatures)
        found: dict[str, Any] = {}
        rows = [["run", "language", *COLUMNS]]
        corpora: dict[str, Corpus] = {}
        for folder in trained(self.run_folder):
            config = folder.config()
            texts = repr((config.data, config.model.context))
            if texts not in corpora:
                corpora[texts] = load_corpus([config], offline=self.offline)
            record = judged(folder, config, corpora[texts], settings, device)
            found[folder.path.name] = record
            for language, scores in record["languages"].items():
                cells = [f"{scores[k]:.4f}" if scores.get(k) is not None else "" for k in COLUMNS]
                rows.append([folder.path.name, language, *cells])
        self.deliver({"runs": found}, rows, command=self._repeat(), spare=SPARE)

    def _repeat(self) -> list[str]:
        """Return the words that repeat this, with what is not as it would be anyway."""
        words = ["elbowroom", "evaluate", str(self.run_folder)]
        for name in ("windows", "temperatures"):
            if getattr(self, name) != getattr(Command, name):
                words += [f"--{name}", str(getattr(self, name))]
        return words


def trained(path: Path) -> list[RunFolder]:
    """Return the runs in a folder that have a model; name the others on stderr.

    Args:
        path: of a run, or of a folder with several.
    """
    folders = run_folders(path)
    found = [folder for folder in folders if (folder.path / "model.safetensors").exists()]
    if not found:
        return folders  # whose error says what to do
    for folder in folders:
        if folder not in found:
            print(f"{folder.path}: left out, its training is not over", file=sys.stderr)
    return found


def judged(
    folder: RunFolder,
    config: RunConfig,
    corpus: Corpus,
    settings: EvaluationConfig,
    device: torch.device,
) -> dict[str, Any]:
    """Return the record of one run's evaluation.

    Args:
        folder: of the run.
        config: of the run.
        corpus: its texts.
        settings: how thoroughly.
        device: where.
    """
    same_texts(folder, config, corpus)
    model = load_model(folder, config, corpus).to(device)
    judge = Judge(corpus, model, [config.loss.final_scale], replace(settings, bins=0))
    with progress(folder.path.name) as on_block:
        return judge.full(on_block)[0]


def same_texts(folder: RunFolder, config: RunConfig, corpus: Corpus) -> None:
    """Raise where the texts are not those that a run was trained on.

    Args:
        folder: of the run.
        config: of the run.
        corpus: what its configuration names now.
    """
    company = folder.company
    known = company.corpus if company is not None else (folder.record or {}).get("corpus")
    if known not in (None, corpus.fingerprint):
        fix = "put back what was there, or train again"
        source = config.data.source
        raise FileError(f"{folder.path}: the texts of {source!r} have changed since; {fix}")


def load_model(folder: RunFolder, config: RunConfig, corpus: Corpus) -> GPT:
    """Return a run's model with its trained weights."""
    model = GPT(replace(config.model, vocab_size=corpus.vocab_size), [config.init_seed])
    model.load_run_state(0, folder.load_model()[0])
    return model
