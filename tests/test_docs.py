"""Documents keep their word: examples run, links lead somewhere, evidence is there."""

from __future__ import annotations

import doctest
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
EVIDENCE = sorted((ROOT / "evidence").rglob("*.*"))
# A fence says "python", or "python no-run" where an example needs what tests lack (a GPU, a model).
FENCE = re.compile(r"^```(python[^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MACHINE = re.compile(r"(?<![\w.~!/-])/(?:work|tmp|root|home|opt|mnt|var|usr|etc|Users)/")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, fence and text of each Python block."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        yield text.count("\n", 0, match.start()) + 2, match.group(1), match.group(2)


@pages
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a page share their names, as a reader would type them one after the other."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    for line, fence, text in blocks(page):
        if text.lstrip().startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line - 1)
            runner.run(test, out=report.append, clear_globs=False)
            names = test.globs
            assert runner.failures == 0, "".join(report)
        else:
            code = compile("\n" * (line - 1) + text, str(page), "exec")
            if "no-run" not in fence:
                exec(code, names)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.exists(), f"{page.name} links to {target}"
        if anchor and goal.suffix == ".md":
            assert anchor in anchors(goal), f"{page.name} links to {target}"


@pages
def test_evidence_is_there(page: Path) -> None:
    for name in re.findall(r"\bevidence/[\w./-]*\w", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize(
    "file", [*PAGES, *EVIDENCE, ROOT / "constraints.txt"], ids=lambda f: f.name
)
def test_no_path_of_a_machine(file: Path) -> None:
    if file.suffix in (".md", ".json", ".txt", ".csv", ".svg", ".html"):
        for i, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            assert not MACHINE.search(line), f"{file.name}:{i}: {line.strip()[:80]}"


def test_every_page_is_on_the_map() -> None:
    linked = set(LINK.findall((ROOT / "docs" / "index.md").read_text(encoding="utf-8")))
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or page.name in linked


def test_constraints_are_exact_and_name_no_address() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert {"torch==2.13.0", "triton==3.7.1"} <= set(pins)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see /tmp/x", True),
        ("at `/home/me/y`", True),
        ("src/tmp/x", False),
        ("https://a/opt/b", False),
    ],
)
def test_the_search_for_paths_finds_them(text: str, found: bool) -> None:
    assert bool(MACHINE.search(text)) == found


METHODS = {
    "cross-entropy": "ce-tied",
    "cross-entropy, untied": "ce-untied",
    "fixed margin 1, as in the paper": "margin-1",
    "**annealed margin, our default**": "margin-default",
    "our default, untied": "untied-default",
    "our default, rare rows from zero, equalization until half-way": "twins-default",
}


def test_the_readmes_numbers_are_the_evidences() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    record = json.loads((ROOT / "evidence" / "paper_setting.json").read_text(encoding="utf-8"))
    found = {(row["method"], row["language"]): row["ppl"] for row in record["rows"]}
    for label, method in METHODS.items():
        cells = []
        for language in ("hr", "lr"):
            x = found[method, language]
            cells.append(f"{x['mean']:.2f} ({x['low']:.2f} to {x['high']:.2f})")
        assert f"| {label} | {cells[0]} | {cells[1]} |" in text
    record = json.loads((ROOT / "evidence" / "loss_cpu.json").read_text(encoding="utf-8"))

    def highest(method: str) -> float:
        own = (row["ratio"]["median"] for row in record["rows"] if row["method"] == method)
        return float(max(own))

    memory = max(row["peak_ratio"] for row in record["rows"] if row["method"] != "peer")
    words = " ".join(text.split())
    assert f"take {highest('margin inf'):.2f} of the time of" in words
    assert f"{highest('0.01'):.2f} where 1% is, and at most {memory:.2f} of its memory" in words
    record = json.loads((ROOT / "evidence" / "bench_cpu.json").read_text(encoding="utf-8"))
    ratios = {
        row["method"]: f"{row['ratio']['median']:.2f}".lstrip("0")
        for row in record["measured"][0]["rows"]
        if row["method"].startswith("ours")
    }
    some, few = ratios["ours, 0.1 kept"], ratios["ours, 0.01 kept"]
    everything = ratios["ours, margin inf"]
    assert f"{everything} where everything is kept, {some} at 10%, {few} at 1%" in words
