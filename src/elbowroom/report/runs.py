"""From the folders of runs to the report of their comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from elbowroom.lab.evaluation import twins
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.tokens import Corpus
from elbowroom.report.compare import compare_report
from elbowroom.report.scatter import HeadMatrix

MOST_POINTS = 2000  # of an embedding map: the first ids, beyond which nobody could tell them apart


def report_of(
    folders: Sequence[RunFolder],
    corpus: Corpus,
    out: str | Path,
    *,
    references: Sequence[str] = (),
    score: str = "ppl",
    command: str | None = None,
) -> Path:
    """Write the report of finished runs, with a map of each method's first seed.

    Args:
        folders: of the runs; those without a record are left out.
        corpus: what they were trained on.
        out: the file.
        references: the methods that others are compared with.
        score: the one that is judged.
        command: what repeats it.
    """
    done = [folder for folder in folders if folder.is_finished]
    records = [folder.record or {} for folder in done]
    metrics = [folder.metrics() for folder in done]
    first: dict[str, RunFolder] = {}
    for record, folder in zip(records, done, strict=True):
        if record["status"] == "done":
            first.setdefault(str(record["name"]), folder)
    maps = [head_matrix(name, folder, corpus) for name, folder in first.items()]
    return compare_report(
        records, metrics, maps, out, references=references, score=score, command=command
    )


def head_matrix(name: str, folder: RunFolder, corpus: Corpus) -> HeadMatrix:
    """Return the head of a finished run, for its map.

    Args:
        name: of the method.
        folder: of the run.
        corpus: for the tokens' names and languages.
    """
    tensors, _ = folder.load_model()
    weight = tensors.get("output", tensors["embedding"]).float().numpy()
    count = min(len(weight), MOST_POINTS)
    groups = corpus.group_of_token[:count]
    mapping = twins(corpus)
    return HeadMatrix(
        name=f"{name}, seed {folder.config().init_seed}",
        weight=np.asarray(weight[:count]),
        tokens=[corpus.tokenizer.decode([i]) for i in range(count)],
        languages=[corpus.languages[g] if g >= 0 else None for g in groups.tolist()],
        pairs=[] if mapping is None else [(a, b) for a, b in mapping.tolist()],
    )
