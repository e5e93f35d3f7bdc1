"""Compare cross-entropy, tied and untied, with ours, side by side on your texts.

TEXTS is a folder with one language a file or a sub-folder, or a known source; without it,
tiny-shakespeare with a simulated second language that is drawn for 2% of the windows. At the end
there is a table with intervals over seeds, a verdict for each language, and a report in one file.

For example:

elbowroom compare

elbowroom compare texts/ --seeds 6 --output runs/mine

elbowroom compare udhr:eng,cym,swh --steps 1000

elbowroom compare --resume
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from elbowroom.cli.live import clock, watching
from elbowroom.cli.show import present, progress
from elbowroom.cli.train import Training, repeat
from elbowroom.lab.corpora import load
from elbowroom.lab.fetch import cache_folder
from elbowroom.lab.tokens import Corpus, prepare
from elbowroom.lab.trainer import train
from elbowroom.provenance import write_json
from elbowroom.report import comparison, comparison_rows, verdict_lines
from elbowroom.report.runs import report_of
from elbowroom.study.compare import REFERENCES, Size, comparison_runs, data_for

BRIEF = ("language", "method", "PPL", "by seed", "bits per byte", "difference", "verdict")


@dataclass(kw_only=True)
class Command(Training):
    """The command's arguments."""

    texts: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TEXTS")] = "shakespeare"
    """A folder, or shakespeare, manpages:de,mk, udhr:eng,cym, hf:NAME/CONFIG, ..."""
    output: Path = Path("runs/compare")
    """The folder for the runs and report.html."""
    seeds: int = 4
    """Starts and orders of data of each method."""
    steps: int = Size.steps
    """Steps of training."""
    layers: int = Size.layers
    """Blocks of the models."""
    width: int = Size.width
    """Their width."""
    heads: int = Size.heads
    """Their attention heads."""
    context: int = Size.context
    """Tokens that they see at once."""
    batch: int = Size.batch
    """Windows a step."""
    lr: float = Size.lr
    """The highest learning rate."""
    windows: int = Size.windows
    """Held-out windows a language that the result is measured on."""
    tokenizer: str = "auto"
    """auto, characters, bytes, bpe, or a tokenizer.json."""
    score: str = "auto"
    """What is judged: ppl, fitted_ppl, bits_per_byte, accuracy or mrr; auto is bits_per_byte,
    and ppl for the simulated pair."""
    fields: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)

    def run(self) -> None:
        """Train, evaluate, judge and report."""
        device, size = self.place(), self._size()
        corpus, data = self._corpus()
        runs = comparison_runs(corpus, data, seeds=self.seeds, size=size, change=self.fields)
        command = self._repeat()
        start = time.monotonic()
        with watching(self.quiet) as observer:
            outcome = train(
                runs,
                corpus,
                self.output,
                device=device,
                resume=self.resume,
                max_minutes=self.max_minutes,
                command=command,
                observer=observer,
            )
        if outcome.stopped:
            said = "stopped; what was done is saved; go on with --resume"
            print(f"{self.output}: {said}", file=sys.stderr)
            return
        records = [folder.record or {} for folder in outcome.folders]
        score = self._score(corpus)
        page = report_of(
            outcome.folders,
            corpus,
            self.output / "report.html",
            references=REFERENCES,
            score=score,
            command=command,
        )
        rows = comparison_rows(records, references=REFERENCES, score=score)
        present(rows, BRIEF)
        lines = verdict_lines(comparison(records, references=REFERENCES, score=score))
        print("\n".join(lines))
        summary = {"command": command, "score": score, "table": rows, "verdicts": lines}
        write_json(self.output / "compare.json", summary)
        print(f"\nreport: {page}   ({clock(time.monotonic() - start)})")

    def _size(self) -> Size:
        return Size(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            context=self.context,
            batch=self.batch,
            steps=self.steps,
            lr=self.lr,
            windows=self.windows,
        )

    def _corpus(self) -> tuple[Corpus, Any]:
        """Return the texts as tokens, and how a configuration names them."""
        with progress("texts") as on_block:

            def shown(done: int, total: int | None) -> None:
                on_block(done, total or done)

            texts = load(self.texts, offline=self.offline, progress=shown)
            characters = sum(texts.characters.values())
            data = data_for(self.texts, self.tokenizer, characters)
            corpus = prepare(
                texts,
                data.tokenizer,
                vocab_size=data.vocab_size,
                validation=data.validation,
                context=self.context,
                folder=cache_folder() / "corpora",
                progress=shown,
            )
        return corpus, data

    def _score(self, corpus: Corpus) -> str:
        if self.score != "auto":
            return self.score
        shared = any(stream.offset for stream in corpus.train)
        return "ppl" if shared else "bits_per_byte"

    def _repeat(self) -> str:
        words: list[str] = [self.texts]
        plain = Command()
        names = ("seeds", "steps", "layers", "width", "heads", "context", "batch", "lr", "windows")
        for name in (*names, "tokenizer", "score"):
            value = getattr(self, name)
            if value != getattr(plain, name) and not (
                isinstance(value, float) and math.isnan(value)
            ):
                words += [f"--{name}", str(value)]
        return repeat("compare", *words, self.fields)
