"""What docs/results.md says of targets, of chance and of averages, by a literal look into the files."""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from pathlib import Path

import pytest

from benchmarks.documents import claims, facts
from benchmarks.figures import readme_curves
from fedsmoo.paper.reproduce import table

ROOT = Path(__file__).parents[2]


def accuracies(method: str, seed: int, column: str = "cifar10-pathological-3-10of100") -> list[float]:
    (path,) = (ROOT / "results").glob(f"{method}-{column}-*-seed{seed}-*.json")
    return [100 * a for a in json.loads(path.read_text())["curve"]["test_accuracy"]]


def test_one_lucky_round_is_not_leaving_chance() -> None:
    """Seed 2 of FedSMOO touches the bar in round 1, and stays above it from round 16."""
    column = "10%-of-100 cifar10.pathological-3"
    for method, name in (("fedsmoo", "FedSMOO"), ("feddyn", "FedDyn"), ("fedavg", "FedAvg")):
        for seed in range(3):
            found = accuracies(method, seed)
            last_below = max(k for k, a in enumerate(found, 1) if a < 12)  # none of these falls back later
            assert facts.leaves_chance(facts.runs("accuracy", column, (seed,))[name][seed]) == last_below + 1
    lucky = accuracies("fedsmoo", 2)
    assert lucky[0] > 12 > max(lucky[1:15])
    assert facts.leaves_chance(facts.runs("accuracy", column, (2,))["FedSMOO"][2]) == 16


def test_rounds_bytes_and_seconds_on_the_page_are_over_all_seeds() -> None:
    """By the files: FedSMOO, MoFedSAM, FedAvg and FedDyn have three seeds there, and all reach 74%."""
    text = (ROOT / "docs" / "results.md").read_text()
    tables = [text.partition(f"<!-- table: {name} -->")[2] for name in ("rounds", "communication", "wallclock")]
    part = tables[0].partition("10%-of-100 cifar10.pathological-3")[2]
    for method, name in (("fedsmoo", "FedSMOO"), ("mofedsam", "MoFedSAM"), ("fedavg", "FedAvg"), ("feddyn", "FedDyn")):
        found = [accuracies(method, seed) for seed in range(3)]
        to = {t: [next(k for k, a in enumerate(run, 1) if a >= t) for run in found] for t in (68, 74)}
        said = {t: f"{statistics.mean(n):.0f} ± {statistics.stdev(n):.0f}" for t, n in to.items()}
        row = next(line for line in part.splitlines() if line.startswith(f"| {name} ")).split(" | ")
        assert [row[k] for k in (1, 2, 4)] == ["3", said[68], said[74]]
        row = next(line for line in tables[1].splitlines() if line.startswith(f"| {name} ")).split(" | ")
        assert row[1:3] == ["3", said[74]]
        row = next(line for line in tables[2].splitlines() if line.startswith(f"| {name} ")).split(" | ")
        assert (row[1], " ± " in row[7]) == ("3", True)


@pytest.mark.parametrize("name", ["rounds", "communication", "wallclock", "ablation"])
def test_tables_on_the_page_are_what_the_command_shows(name: str) -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    block = re.search(rf"<!-- table: {name} -->\n(.*?)<!-- /table -->", text, re.DOTALL)
    assert block is not None
    made = table(name, run=False, out=ROOT / "runs-that-are-not-there", results=ROOT / "results")
    assert made.render("markdown") == block[1]


def test_averages_over_all_columns_are_those_of_the_printed_table_and_of_the_files() -> None:
    """FedSAM less FedAvg and MoFedSAM less FedSAM, by the numbers as printed and by a look into 48 files."""
    printed = tomllib.loads((ROOT / "src/fedsmoo/paper/published.toml").read_text())["accuracy"]
    tops, ends = (
        {
            method: [
                measure([100 * a for a in json.loads(path.read_text())["curve"]["test_accuracy"]])
                for path in sorted((ROOT / "results").glob(f"{method.lower()}-*-seed0-*.json"))
            ]
            for method in ("FedAvg", "FedSAM", "MoFedSAM")
        }
        for measure in (max, lambda run: statistics.fmean(run[-10:]))
    )
    assert {len(found) for found in tops.values()} == {16}
    rows = {m: [x for block in printed.values() for x in block[m]] for m in tops}
    said = {(a, b): points for _, a, b, *points in claims.averages()[1:]}
    for a, b in (("FedSAM", "FedAvg"), ("MoFedSAM", "FedSAM")):
        wanted = [statistics.fmean(of[a]) - statistics.fmean(of[b]) for of in (rows, tops, ends)]
        assert said[a, b] == pytest.approx(wanted)


def test_curves_of_the_released_readme_stand_beside_what_the_page_says_it_prints() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    tops = {m: [f"{100 * max(r.scores):.2f}" for r in runs.values()] for m, runs in readme_curves.panels().items()}
    printed = {m: f"{level:.2f}" for m, level in readme_curves.PRINTED.items()}
    assert f"FedSpeed as released has {tops['FedSpeed'][0]} (printed: {printed['FedSpeed']}), FedGamma" in text
    assert f"FedGamma {tops['FedGamma'][0]} ({printed['FedGamma']}) and MoFedSAM" in text
    assert f"a radius of 0.1 {tops['MoFedSAM'][0]} ({printed['MoFedSAM']})" in text
    assert f"its best round is {tops['MoFedSAM'][1]} after 800 rounds" in text
    said = re.findall(r"<!-- (.*?) -->", (ROOT / "docs" / "figures" / "readme_others.svg").read_text())
    assert {f"printed: {level}" for level in printed.values()} <= {*said}, "run make figures"
