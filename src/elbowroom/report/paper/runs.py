"""From the folders of runs to what a report shows of them, and records as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elbowroom.errors import FileError
from elbowroom.lab.config import RunConfig
from elbowroom.lab.folder import RunFolder
from elbowroom.lab.model import GPT
from elbowroom.lab.tokens import Corpus
from elbowroom.provenance import write_bytes
from elbowroom.report.runs import head_matrix
from elbowroom.report.scatter import HeadMatrix
from elbowroom.study.paper.curves import curves_of
from elbowroom.study.paper.gradients import gradients_of
from elbowroom.study.paper.layout import FOLLOWED, MEASURED, SPARSE, STEPPED, TAILED, TRANSLATED
from elbowroom.study.paper.optimisation import step_of
from elbowroom.study.paper.tail import tail_of
from elbowroom.study.paper.translations import cosines_of, neighbours_of

KEYS = ("name", "init_seed", "data_seed", "status", "config")


def finished(output: Path, runs: Sequence[RunConfig]) -> list[dict[str, Any]]:
    """Return the records of runs that are finished.

    Args:
        output: the folder of all runs' folders.
        runs: in the order wanted.
    """
    found = (RunFolder(output / run.folder).record for run in runs)
    return [record for record in found if record is not None]


def looked_into(record: dict[str, Any], output: Path, corpus: Corpus) -> dict[str, Any]:
    """Return a record with what its folder says beyond it, where that is shown.

    Series over training, ratios of gradients, what the model says of letters and of one context,
    and how one step moves its rows.

    Args:
        record: of a run.
        output: the folder of all runs' folders.
        corpus: that it was trained on.
    """
    if record["status"] != "done":
        return record
    name, folder = record["name"], _folder(record, output)
    found: dict[str, Any] = {}
    if name in {*FOLLOWED, *SPARSE}:
        found["curves"] = curves_of(folder.metrics(), record)
    if name in MEASURED:
        ratios, every = folder.gradients, folder.config().training.gradients_every
        if ratios is not None and every is not None:
            found["gradients"] = gradients_of(ratios, corpus, every)
    if name in {*TRANSLATED, *TAILED, *STEPPED}:
        found |= _of_model(name, folder, corpus)
    return {**record, **{key: value for key, value in found.items() if value is not None}}


def _of_model(name: str, folder: RunFolder, corpus: Corpus) -> dict[str, Any]:
    config = folder.config()
    model = GPT(replace(config.model, vocab_size=corpus.vocab_size), [config.init_seed])
    model.load_run_state(0, folder.load_model()[0])
    head = model.head[0].detach()
    return {
        "neighbours": neighbours_of(head, corpus),
        "cosines": cosines_of(head, corpus),
        "tail": tail_of(model, corpus, config.loss.final_scale),
        "step": step_of(model, corpus, config) if name in STEPPED else None,
    }


def first_heads(
    records: Sequence[Mapping[str, Any]], output: Path, corpus: Corpus
) -> Iterator[HeadMatrix]:
    """Yield the head of the first seed of each method whose cosines are shown.

    Args:
        records: of finished runs.
        output: the folder of all runs' folders.
        corpus: that they were trained on.
    """
    seen: set[str] = set()
    for record in records:
        name = str(record["name"])
        if name in TRANSLATED and name not in seen and record["status"] == "done":
            seen.add(name)
            yield head_matrix(name, _folder(record, output), corpus)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records in a file, one a line of JSON.

    Args:
        path: the file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) for line in lines if line.strip()]
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileError(f"{path}: expected a record in JSON on each line ({error})") from error
    for number, record in enumerate(found, start=1):
        if not isinstance(record, dict) or any(key not in record for key in KEYS):
            raise FileError(f"{path}: line {number} is no record of a run of the lab")
    return found


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write records as `read_records` reads them, all or nothing; curves are rounded.

    Args:
        path: the file.
        records: of runs.
    """
    lines = "".join(json.dumps(_brief(r), ensure_ascii=False) + "\n" for r in records)
    write_bytes(path, lines.encode("utf-8"))


def _brief(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with curves over temperature rounded, to keep the file small."""
    languages = {}
    for language, scores in record.get("languages", {}).items():
        nll = scores.get("nll_by_temperature", [])
        rounded = [None if value is None else round(value, 5) for value in nll]
        languages[language] = {**scores, "nll_by_temperature": rounded}
    return {**record, "languages": languages}


def _folder(record: Mapping[str, Any], output: Path) -> RunFolder:
    return RunFolder(output / f"{record['name']}-i{record['init_seed']}-d{record['data_seed']}")
