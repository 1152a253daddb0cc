"""The tables in README and docs are those that the measured results give."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from fedsmoo.cli import main

ROOT = Path(__file__).parents[2]


def loaded(name: str) -> ModuleType:
    """A script of benchmarks/ under a name that nothing else has."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call a script of benchmarks/ with some words, in this process; what is out of date ends it."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def calling(name: str, *words: str) -> None:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        loaded(name).main()

    return calling


def test_benchmark_tables_are_up_to_date(script: Callable[..., None]) -> None:
    script("tables", "--check")


def test_ratios_at_equal_precision_stand_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times our seconds in the precision of the authors' code are a quarter of the ratio."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tables = loaded("tables")
    for path in (ROOT / "results/gpu").glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ours = [r | {"seconds_per_round": 4 * r["seconds_per_round"]} for r in tables.read("round.json")]
    (tmp_path / "round_tf32.json").write_text(json.dumps(ours))
    theirs = tables.read("authors.json")["results"][0]["seconds_per_round"]
    monkeypatch.setattr(tables, "GPU", tmp_path)
    row = next(line for line in tables.headline().splitlines() if line.startswith("| FedAvg"))
    assert row.split("|")[2:7] == [
        f" {f} " for f in (
            f"{ours[0]['seconds_per_round'] / 4:.3f} s", f"{ours[0]['seconds_per_round']:.3f} s", f"{theirs:.1f} s",
            f"{4 * theirs / ours[0]['seconds_per_round']:.0f}x", f"{theirs / ours[0]['seconds_per_round']:.0f}x",
        )
    ]  # fmt: skip


def test_paper_tables_are_up_to_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as ended:
        main(["table", "--update", "docs/results.md", "--check"])
    assert not ended.value.code, capsys.readouterr().err


def test_numbers_in_sentences_are_those_of_the_files_and_a_changed_digit_is_noticed(
    script: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    script("prose", "--check", "--mutate")
    noticed, of = (int(word) for word in capsys.readouterr().out.split()[:3:2])
    assert of > 100
    assert noticed >= 0.95 * of


def test_a_sentence_is_held_to_what_fills_its_holes() -> None:
    prose = loaded("prose")
    pieces = [prose.piece("FedAvg takes {:.1f} ms,\nin {:d} rounds", (12.34, 5)), prose.piece("u = 0.1")]
    good = "Here FedAvg  takes 12.3 ms, in\n5 rounds (u = 0.1). `lr = 0.2`\n"
    good += "```\n7.7 s\n```\n<!-- gpu:x -->\n9.9 s\n<!-- /gpu -->"
    assert prose.problems(good, pieces) == []
    assert [good[a:b] for a, b in prose.numbers(good)] == ["12.3", "5", "0.1"]
    assert prose.unnoticed(good, pieces) == []
    (line,) = prose.problems(good + " And 4.4 GB more.", pieces)
    assert line.startswith("4.4 in")
    stale = good.replace("12.3", "11.9")
    assert any("'FedAvg takes 12.3 ms, in 5 rounds'; the text says 'FedAvg takes 11.9 ms" in line.replace("\\n", " ")
               for line in prose.problems(stale, pieces))  # fmt: skip
    assert prose.refreshed(stale, pieces) == good
    assert prose.problems(good.replace("FedAvg", "FedCM"), pieces)  # the piece is gone, and its numbers are in none
