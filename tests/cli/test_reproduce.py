from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from elbowroom.cli import reproduce as module
from elbowroom.cli import train as training
from elbowroom.cli.main import main
from elbowroom.lab.distributed import Ranks
from elbowroom.lab.trainer import Event
from elbowroom.study.paper import layout
from elbowroom.study.paper.effective import effective_margins
from elbowroom.study.paper.rows import stretches
from elbowroom.study.paper.tuning import tuning_runs
from tests.cli import lab
from tests.study.paper.made_up import records

Capture = pytest.CaptureFixture[str]
SOURCE = ("--data.source", "texts/en.txt?pair=same", "--optimizer.warmup", "2")
NEED_MODELS = ("tokens", "cosine", "components")  # figures of what is not in records
TINY = (*SOURCE, *lab.SMALL, *lab.SHORT, *lab.FEW, "--threads", "1", "--training.steps", "6")


@pytest.fixture(autouse=True)
def small_effective(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(progress: Any) -> Any:
        return effective_margins(
            vocab_size=64, widths={"gpt2": 16}, sample=8, draws=2, progress=progress
        )

    monkeypatch.setattr(module, "effective_margins", found)


@pytest.fixture(autouse=True)
def few_families(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(layout.RIVALS, families=("ce-tied", "sampling"))
    monkeypatch.setitem(layout.PARTS, "table-rivals", few)


def reproduce(*arguments: str) -> int:
    """Reproduce with small models in ``runs/`` and return the exit code."""
    return main(["reproduce", *TINY, "--output", "runs", *arguments])


def same_files(found: Path, again: Path, without: tuple[str, ...]) -> None:
    """Compare what two reports have written, but for names that begin with certain words."""
    names = {x.name for x in found.iterdir() if not x.name.startswith(without or ("?",))}
    assert names == {path.name for path in again.iterdir()}
    assert [n for n in names if (found / n).read_bytes() != (again / n).read_bytes()] == []


def letters() -> None:
    """Give the text the letters whose neighbours a table shows."""
    path = Path("texts/en.txt")
    path.write_text(path.read_text(encoding="utf-8") + " A CAT." * 20, encoding="utf-8")


def test_every_part_in_a_quick_run(home: Path, capsys: Capture) -> None:
    letters()
    assert reproduce("--quick", "--seeds", "1") == 0
    out, err = capsys.readouterr()
    assert "51 runs of 50 methods: 0 finished, 0 begun" in err
    assert "4 runs of these tune; what they choose needs 2 more at most" in err
    assert out.startswith("These runs are not in the paper's setting")
    assert re.search(r"\nreport: runs/report.html   \(\d+:\d\d\)\n$", out)
    page = Path("runs/report.html").read_text(encoding="utf-8")
    found = re.search(r"(\d+) finished runs of 50 methods, 4 of them for tuning\.", page)
    assert found
    assert 52 <= int(found[1]) <= 53  # cross-entropy as it is would be there already
    assert "Each method had 2 settings, each trained with seed 1000: 4 runs in all." in page
    assert "elbowroom reproduce --only table-untied --quick --seeds 1 --resume" in page
    names = {path.name for path in Path("runs/tables").iterdir()}
    assert len(names) == 3 * 15  # eight tables, four beside figures, and three of rivals
    figures = {path.stem for path in Path("runs/figures").iterdir()}
    assert {"tokens", "tail", "cosine-classes", "cosines-0", "cosines-3", "components-3"} <= figures
    assert {"gradients-averages-hr", "optimisation-0", "optimisation-1", "kept"} <= figures
    assert {"discovery", "margins-ppl-lr", "margins-accuracy-hr"} <= figures
    assert "<h2>Failed runs</h2>" in page
    assert "Nothing to show" not in page
    translations = Path("runs/tables/table-translations.md").read_text(encoding="utf-8")
    assert translations.count("| ours |") == 4
    assert main(["reproduce", "--records", "runs/records.jsonl", "--output", "again"]) == 0
    same_files(Path("runs/tables"), Path("again/tables"), ())
    same_files(Path("runs/figures"), Path("again/figures"), NEED_MODELS)


def test_runs_are_reused_and_records_make_the_same_tables(home: Path, capsys: Capture) -> None:
    only = ("--only", "table-detached,table-hyperparameters", "--only", "figure-distributions")
    assert reproduce(*only, "--seeds", "2") == 0
    trained = lab.weights(Path("runs"))
    assert set(trained) == {f"detached-{m}-i{s}-d{s}" for m in "12" for s in (0, 1)}
    capsys.readouterr()
    assert reproduce(*only, "--seeds", "2") == 2
    assert "go on with --resume" in capsys.readouterr().err
    assert reproduce(*only, "--seeds", "3", "--resume") == 0
    assert "6 runs of 2 methods: 4 finished, 0 begun, 2 to begin" in capsys.readouterr().err
    assert trained.items() < lab.weights(Path("runs")).items()
    given = ("--records", "runs/records.jsonl", "--output", "again")
    assert main(["reproduce", *only, *given]) == 0
    assert "report: again/report.html" in capsys.readouterr().out
    for path in Path("runs/tables").iterdir():
        assert path.read_bytes() == Path("again/tables", path.name).read_bytes()
    assert not Path("again/records.jsonl").exists()
    page = Path("again/report.html").read_text(encoding="utf-8")
    assert "--records records.jsonl" in page


def test_both_protocols_live_in_one_folder(home: Path, capsys: Capture) -> None:
    """Each has runs and a report of its own, and the later one shows both."""
    tiny = [word.replace("pair=same", "pair=disjoint&part=0.3") for word in TINY]
    clean = ["reproduce", *tiny, "--output", "runs", "--protocol", "clean", "--quiet"]
    only = ("--only", "table-detached,table-protocols,table-hyperparameters", "--seeds", "1")
    often = ("--training.steps", "61", "--quick", "--quiet")
    assert reproduce(*only, *often) == 0
    paper = lab.weights(Path("runs"))
    page = Path("runs/report.html").read_text(encoding="utf-8")
    assert "Protocol: paper." in page
    assert "Not here: finished runs by both protocols" in page
    chosen = [lab.record(Path("runs", name))["chosen"] for name in paper]
    assert {one["step"] for one in chosen} == {60}
    table = Path("runs/tables/table-hyperparameters.md").read_text(encoding="utf-8")
    assert "| eval_iters | 20 | 10 | differs |" in table
    assert main([*clean, *only, *often]) == 0
    assert "The clean protocol: each language reads a text of its own" in capsys.readouterr().out
    assert lab.weights(Path("runs")) == paper
    assert lab.weights(Path("runs/clean")).keys() == paper.keys()
    assert "chosen" not in lab.record(Path("runs/clean/detached-1-i0-d0"))
    table = Path("runs/clean/tables/table-hyperparameters.md").read_text(encoding="utf-8")
    assert "| eval_iters | 20 | – | the last iterate is judged |" in table
    page = Path("runs/clean/report.html").read_text(encoding="utf-8")
    assert "--quick --protocol clean --seeds 1 --resume" in page
    both = Path("runs/clean/tables/table-protocols.md").read_text(encoding="utf-8")
    assert both.count("| Detached under threshold, margin") == 4
    assert reproduce(*only, *often, "--resume") == 0
    assert Path("runs/tables/table-protocols.md").read_text(encoding="utf-8") == both
    joined = [Path("runs", *p, "records.jsonl").read_text() for p in ((), ("clean",))]
    Path("both.jsonl").write_text("".join(joined), encoding="utf-8")
    given = ("--records", "both.jsonl", "--output", "again")
    assert main(["reproduce", "--only", "table-detached,table-protocols", *given]) == 0
    for name in ("table-protocols", "table-detached"):
        again = Path(f"again/tables/{name}.csv").read_bytes()
        assert again == Path(f"runs/tables/{name}.csv").read_bytes()


def test_what_is_looked_into_is_in_the_records(home: Path, capsys: Capture) -> None:
    only = ("--only", "figure-optimisation,figure-discovery,figure-kept")
    assert reproduce(*only, "--seeds", "1", "--quiet") == 0
    lines = Path("runs/records.jsonl").read_text(encoding="utf-8").splitlines()
    found = {one["name"]: one for one in map(json.loads, lines)}
    assert set(found["ce-tied"]["step"]["losses"]) == {"cross-entropy", "margin 1"}
    assert found["margin-1"]["curves"]["translation"]["steps"] == [4, 6]
    assert found["margin-2"]["curves"]["kept"]["steps"] == [2, 4, 6]
    given = ("--records", "runs/records.jsonl", "--output", "again")
    assert main(["reproduce", *only, *given]) == 0
    capsys.readouterr()
    for path in Path("runs/figures").iterdir():
        assert path.read_bytes() == Path("again/figures", path.name).read_bytes()
    assert len(list(Path("again/figures").iterdir())) == 2 * 4


def test_a_dry_run_says_what_remains_and_trains_nothing(home: Path, capsys: Capture) -> None:
    assert reproduce("--dry-run", "--only", "figure-temperature") == 0
    assert capsys.readouterr().out == (
        "70 runs of 7 methods: 0 finished, 0 begun, 70 to begin; "
        "at most 420 steps left, over all runs\n"
    )
    assert not Path("runs").exists()


def test_the_tuning_comes_first_and_a_break_before_its_choice_changes_nothing(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rivals = ("--only", "table-rivals", "--seeds", "2")
    assert reproduce(*rivals, "--dry-run") == 0
    assert capsys.readouterr().out == (
        "16 runs of 8 methods: 0 finished, 0 begun, 16 to begin; at most 96 steps left, over all "
        "runs\n16 runs of these tune; what they choose needs 4 more at most\n"
    )
    fit = module.Command.fit

    def stop_before_choice(self: Any, runs: Any, *given: Any, **more: Any) -> Any:
        if runs[0].init_seed == 0:
            raise KeyboardInterrupt("stopped")
        return fit(self, runs, *given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(module.Command, "fit", stop_before_choice)
        assert reproduce(*rivals, "--quiet") == 130
    tuning = lab.weights(Path("runs"))
    assert {name.partition("-i")[2] for name in tuning} == {"1000-d1000", "1001-d1001"}
    page = Path("runs/report.html").read_text(encoding="utf-8")
    assert "16 finished runs of 8 methods, 16 of them for tuning; 4 runs are still" in page
    text = Path("runs/tables/table-rivals-tuning.md").read_text(encoding="utf-8")
    chosen = re.findall(r"\| (\S+) \| [^|]+ \| [^|]+ \| chosen \|", text)
    assert len(chosen) == 2

    assert reproduce(*rivals, "--resume", "--quiet") == 0
    reported = lab.weights(Path("runs")).keys() - tuning.keys()
    assert reported == {f"{method}-i{s}-d{s}" for method in chosen for s in (0, 1)}
    assert tuning.items() < lab.weights(Path("runs")).items()
    given = ("--records", "runs/records.jsonl", "--output", "again", "--only", "table-rivals")
    assert main(["reproduce", *given]) == 0
    for path in Path("runs/tables").iterdir():
        assert path.read_bytes() == Path("again/tables", path.name).read_bytes()
    capsys.readouterr()
    assert reproduce(*rivals, "--dry-run") == 0
    out = capsys.readouterr().out
    assert "20 runs of 8 methods: 20 finished" in out
    assert out.endswith("16 runs of these tune\n")


def test_all_that_tune_are_one_stretch_on_cuda() -> None:
    runs = tuning_runs([layout.RIVALS])
    assert list(stretches(runs, module.AT_ONCE["cuda"])) == [runs]


def test_ctrl_c_goes_on_with_resume(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.AT_ONCE, "cpu", 2)  # a stretch a seed
    only = ("--only", "table-detached", "--seeds", "2")
    pressed: list[Event] = []

    def press(event: Event) -> None:
        second = any(run.init_seed == 1 for run in event.runs)
        if event.kind == "log" and second and not pressed:
            pressed.append(event)
            os.kill(os.getpid(), signal.SIGINT)

    @contextlib.contextmanager
    def watching(quiet: bool) -> Iterator[object]:
        yield press

    with monkeypatch.context() as patched:
        patched.setattr(training, "watching", watching)
        assert reproduce(*only) == 130
    assert "runs: stopped; what was done is saved" in capsys.readouterr().err
    first = Path("runs/report.html").read_text(encoding="utf-8")  # of the seed that is done
    assert "2 finished runs of 2 methods; 2 runs are still to be trained." in first
    assert reproduce(*only, "--resume", "--quiet") == 0
    assert "4 finished runs" in Path("runs/report.html").read_text(encoding="utf-8")
    assert main(["reproduce", *TINY, *only, "--output", "whole", "--quiet"]) == 0
    assert lab.weights(Path("runs")) == lab.weights(Path("whole"))


def test_a_time_limit_stops_before_the_first_stretch(home: Path, capsys: Capture) -> None:
    assert reproduce("--only", "table-detached", "--max-minutes", "0", "--quiet") == 0
    out, err = capsys.readouterr()
    assert not out
    assert "stopped" in err
    page = Path("runs/report.html").read_text(encoding="utf-8")
    assert "0 finished runs of 0 methods; 20 runs are still to be trained." in page


def test_parts_without_runs_need_no_texts(home: Path, capsys: Capture) -> None:
    only = ("--only", "table-effective,table-hyperparameters")
    assert main(["reproduce", *only, "--output", "runs", "--quiet", "--threads", "1"]) == 0
    assert Path("runs/tables/table-effective.csv").exists()
    assert "| max_iters | 8000 | 8001 |" in Path("runs/tables/table-hyperparameters.md").read_text()


def test_pre_trained_weights_stand_beside_the_print(home: Path) -> None:
    for name in ("small", "other"):
        tensors = {"wte.weight": torch.randn(40, 8), "ln_f.weight": torch.ones(8)}
        save_file(tensors, f"{name}.safetensors")
    given = (
        "--weights",
        "gpt2=small.safetensors",
        "--weights",
        f"mine={Path.cwd()}/other.safetensors",
    )
    only = ("--only", "table-effective", "--output", "runs", "--quiet", "--threads", "1")
    assert main(["reproduce", *only, *given]) == 0
    rows = Path("runs/tables/table-effective.md").read_text(encoding="utf-8").splitlines()
    ours = next(row for row in rows if row.startswith("| gpt2 |"))
    assert re.search(r"\| -?\d+\.\d\d \(\d+\.\d\d\) \| 32\.96 \(5\.4\) \|", ours)
    assert any(row.startswith("| mine | 8 | – |") for row in rows)
    page = Path("runs/report.html").read_text(encoding="utf-8")
    assert "--weights gpt2=small.safetensors --weights mine=other.safetensors" in page


def test_token_counts_need_the_texts_and_no_runs(home: Path) -> None:
    assert reproduce("--only", "figure-tokens", "--quiet") == 0
    assert not lab.weights(Path("runs"))
    assert Path("runs/figures/tokens.svg").exists()
    assert "hr: from" in Path("runs/report.html").read_text(encoding="utf-8")


def test_failed_runs_are_named(home: Path, capsys: Capture) -> None:
    listed = [{**one, "status": "failed", "reason": "why"} for one in records(("margin-1",), 1)]
    text = "\n".join(json.dumps(one) for one in [*listed, *records(("ce-tied",), 1)])
    Path("records.jsonl").write_text(text.replace("Infinity", '".inf"'), encoding="utf-8")
    assert main(["reproduce", "--records", "records.jsonl", "--output", "runs"]) == 0
    said = capsys.readouterr().err
    assert said == "margin-1, seed 0 failed and counts nowhere: why\n"
    tuning = {**listed[0], "init_seed": 1000, "data_seed": 1000}
    Path("records.jsonl").write_text(json.dumps(tuning), encoding="utf-8")
    assert main(["reproduce", "--records", "records.jsonl", "--output", "runs"]) == 0
    said = capsys.readouterr().err
    assert said == "margin-1, seed 1000 failed and rules its setting out: why\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "table-3"], "--only: expected 'table-metrics' or "),
        (["--seeds", "0"], "--seeds: expected an integer, at least 1, got 0"),
        (["--protocol", "last"], "--protocol"),
        (["--records", "other.jsonl", "--protocol", "clean"], "--protocol and --records do not go"),
        (["--training.keep", "last"], "training.keep: expected what each row has"),
        (["--seeds", "1001"], "--seeds: expected at most 1,000: the seeds from there on are the"),
        (["--records", "texts/en.txt"], "texts/en.txt: expected a record in JSON on each line"),
        (["--records", "absent"], "absent: No such file"),
        (["--records", "other.jsonl"], "other.jsonl: no runs of the paper's methods in it"),
        (["--records", "wrong.jsonl"], "wrong.jsonl: line 1 is no record of a run of the lab"),
        (["--records", "other.jsonl", "--quick"], "--quick and --records do not go together"),
        (["--model.heads", "3"], "model.width: expected a multiple of heads, 3"),
        (
            ["--training.gradients_every", "3"],
            "training.gradients_every: expected what each row has",
        ),
        (["--init_seed", "3"], "init_seed: expected what each row has, got 3; leave it out"),
        (["--loss.margin", "3"], "loss: expected what each row has"),
        (["--weights", "gpt2"], "--weights: expected NAME=FILE, such as gpt2=model.safetensors"),
        (["--weights", "a=x,y"], "x: no such file"),
        (["--weights", "a=b", "--only", "table-untied"], "--weights: they are shown in table-eff"),
        (["--ony", "x"], "no option or field --ony; did you mean --only?"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], words: str, home: Path, capsys: Capture
) -> None:
    other = {**records(("ce-tied",), 1)[0], "name": "mine"}
    Path("other.jsonl").write_text(json.dumps(other), encoding="utf-8")
    Path("wrong.jsonl").write_text('{"name": "ce-tied"}', encoding="utf-8")
    line = lab.line_of_error(["reproduce", *arguments, "--output", "runs"], capsys)
    assert words in line
    assert not Path("runs").exists()


def test_of_several_processes_only_the_first_reports(
    home: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def second(device: torch.device) -> Iterator[Ranks]:
        yield Ranks(rank=1)

    monkeypatch.setattr(module, "joined", second)
    assert reproduce("--only", "table-detached", "--seeds", "1", "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert len(lab.weights(Path("runs"))) == 2
    assert not Path("runs/report.html").exists()
