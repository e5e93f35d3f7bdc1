"""Compare cross-entropy with ours, each tied and untied, side by side on your texts.

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

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from elbowroom import checks
from elbowroom.cli.live import clock
from elbowroom.cli.main import UsageError
from elbowroom.cli.plans import repeat
from elbowroom.cli.show import present, progress, say
from elbowroom.cli.train import Training
from elbowroom.lab.config import DataConfig, merge, run_config
from elbowroom.lab.corpora import load
from elbowroom.lab.distributed import joined
from elbowroom.lab.fetch import cache_folder
from elbowroom.lab.strict import from_plain, to_plain
from elbowroom.lab.tokenizers import require_tokenizers
from elbowroom.lab.tokens import Corpus, prepare
from elbowroom.lab.trackers import tracking
from elbowroom.lab.trainer import Outcome
from elbowroom.provenance import write_json
from elbowroom.report import SCORES, comparison, comparison_rows, verdict_lines
from elbowroom.report.runs import report_of
from elbowroom.study.compare import (
    REFERENCES,
    Size,
    comparison_base,
    comparison_runs,
    data_for,
)

SIZES = ("layers", "width", "heads", "context", "batch", "steps", "lr", "windows")
SPARE = ("MRR", "accuracy", "PPL, fitted T", "bits/byte", "PPL", "by seed")  # the judged one stays


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
    """What is judged: ppl, fitted_ppl, bits_per_byte, accuracy, mrr, ...; auto is bits_per_byte,
    and ppl for the simulated pair."""

    def run(self) -> None:
        """Train, evaluate, judge and report."""
        size = self._checked()
        device, start = self.place(), time.monotonic()
        with tracking(self.trackers(), self.output) as tracker, joined(device) as ranks:
            with ranks.one_first():
                corpus, data = self._corpus()
            runs = comparison_runs(corpus, data, seeds=self.seeds, size=size, change=self.fields)
            command = self._repeat()
            outcome = self.fit(runs, corpus, device=device, command=command, tracker=tracker)
            if ranks.is_first and not outcome.stopped:
                page = self._report(outcome, corpus, command)
                print(f"\nreport: {page}   ({clock(time.monotonic() - start)})")

    def _checked(self) -> Size:
        """Return the size; raise where an option cannot be meant, before any work."""
        self.check()
        checks.integer("--seeds", self.seeds, at_least=1)
        checks.choice("--score", self.score, ("auto", *SCORES))
        size = Size(**{name: getattr(self, name) for name in SIZES})
        run_config(comparison_base(DataConfig(), size=size, change=self.fields))
        if "source" in self.fields.get("data", {}):
            raise UsageError("--data.source: the texts are named in the place of TEXTS")
        if self.tokenizer == "bpe":
            require_tokenizers()
        return size

    def _report(self, outcome: Outcome, corpus: Corpus, command: str) -> Path:
        """Write the report and the summary, and print the latter; return where the report is."""
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
        lines = verdict_lines(comparison(records, references=REFERENCES, score=score))
        summary = {"command": command, "score": score, "table": rows, "verdicts": lines}
        summary["provenance"] = records[0]["provenance"]
        write_json(self.output / "compare.json", summary)
        present(rows, [name for name in SPARE if name != SCORES[score].label])
        say(lines)
        for folder, record in zip(outcome.folders, records, strict=True):
            if record["status"] != "done":
                said = f"{folder.path} failed and counts nowhere: {record.get('reason')}"
                print(said, file=sys.stderr)
        return page

    def _corpus(self) -> tuple[Corpus, DataConfig]:
        """Return the texts as tokens, and how a configuration names them."""
        with progress("texts", quiet=self.quiet) as on_block:

            def shown(done: int, total: int | None) -> None:
                on_block(done, total or done)

            texts = load(self.texts, offline=self.offline, progress=shown)
            found = data_for(self.texts, self.tokenizer, sum(texts.characters.values()))
            changed = merge(to_plain(found), self.fields.get("data", {}))
            data = from_plain(DataConfig, changed, "data")
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
        """Return the command that repeats this, with what is not as it would be anyway."""
        plain = Command()
        words = [self.texts]
        for name in ("seeds", *SIZES, "tokenizer", "score"):
            if getattr(self, name) != getattr(plain, name):
                words += [f"--{name}", str(getattr(self, name))]
        return repeat("compare", *words, self.fields)
