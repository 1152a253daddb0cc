"""The result files of the repository: what they are is known, and none stands for another."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from benchmarks.campaign import adopt
from fedsmoo.core.hyper.schedule import Schedule
from fedsmoo.pages.figures.sources import find
from fedsmoo.paper.experiments import experiment, published
from fedsmoo.paper.render import render
from fedsmoo.paper.reproduce import build, homes
from fedsmoo.sweeps.bases import EXPERIMENTS, read_sweep
from fedsmoo.sweeps.grid import run_name
from fedsmoo.sweeps.results import FORMAT, SUPERSEDED, Measured, collect, from_json, to_json

from .small import fake_result, write_results

RESULTS = Path(__file__).parents[2] / "results"
CAMPAIGN = RESULTS.parent / "experiments" / "campaign"
FILES = [p for p in sorted(RESULTS.rglob("*.json")) if "gpu" not in p.parts]
WIDE = ("accuracy", "rounds", "curves")  # tables of many columns
RUNS = [p for p in FILES if isinstance(v := json.loads(p.read_text()), dict) and v.get("format") == FORMAT]


@cache
def read(path: Path) -> Measured:
    return from_json(path)


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.stem[-30:])
def test_a_result_says_what_made_it(path: Path) -> None:
    value = json.loads(path.read_text())
    assert not re.fullmatch(r"fedsmoo \d+", value["command"])
    assert re.match(r"fedsmoo (sweep|run|table) |command not recorded; ", value["command"])
    assert value["commit"]
    assert (SUPERSEDED in value) == (path.parent.name == SUPERSEDED and path.name.startswith("fedsmoo"))
    assert path.stem == read(path).name


def commits(begin: str, end: str) -> set[str]:
    """All commits from one on and before another, where the history is here."""
    found = subprocess.run(["git", "rev-list", f"{begin}^..{end}^"], cwd=RESULTS, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("the repository's history is not here")
    return {*found.stdout.split()}


def test_what_was_measured_with_kernels_that_did_not_wait_says_so() -> None:
    """Kernels by boxes loaded over what a product still read, until 90f204bb (docs/gpu.md); no run was trained so."""
    own, general = (commits(begin, "90f204bb") for begin in ("e8f05686", "9def089e"))
    assert own < general
    for path in RUNS:
        value = json.loads(path.read_text())
        assert value["commit"] not in (own if value["config"]["model"] == "resnet18_gn" else general)
    gpu = {name: json.loads((RESULTS / "gpu" / f"{name}.json").read_text()) for name in ("modules", "convolutions")}
    rows = [r | {"in": value["code"]} for value in gpu.values() for r in value["rows"]]
    convolving = [r for r in rows if r.get("model") in ("cnn", "resnet") or "boxes" in r]
    made = [(r, r.get("commit", r["in"]["commit"])) for r in convolving]
    assert [r.get("unawaited", False) for r, _ in made] == [commit in general for _, commit in made]
    history = json.loads((RESULTS / "gpu" / "history.json").read_text())
    marked = [e["version"][:36] for e in history if e.get("unawaited")]
    assert marked == ["the tensor memory unit brings most t", "the pass after a gradient begins wit"]
    assert {e["commit"] for e in history if e.get("unawaited")} < own


def test_every_result_lies_in_its_folder() -> None:
    """Above all: results/ itself has runs of table 1 and nothing else, so that whoever takes all of them may."""
    places = {p: str(p.parent.relative_to(RESULTS)) for p in RUNS if p.parent.name != SUPERSEDED}
    assert {p: adopt.home(read(p)) or "." for p in places} == places
    assert {*places.values()} >= {".", "ablation", "precision", "search", "sensitivity", "variants"}
    table = {c.identity for c in experiment("accuracy", seeds=(0, 1, 2)).cells}
    assert {read(p).identity for p, place in places.items() if place == "."} <= table


def test_runs_of_the_sensitivity_change_no_other_table_or_figure(tmp_path: Path) -> None:
    column = "10%-of-100 cifar10.dirichlet-0.1"
    results, came = tmp_path / "results", tmp_path / "came"
    write_results(results, {"FedAvg": 70.0, "FedSMOO": 80.0}, column)
    came.mkdir()

    def told() -> dict[str, str]:
        found = collect((), homes(results))
        texts = {n: render(build(experiment(n, [column] if n in WIDE else []), found), "csv") for n in EXPERIMENTS}
        return {**texts, "figures": json.dumps([run["name"] for run in find([results]).runs])}

    before = told()
    cells = experiment("sensitivity").cells
    for cell in cells:
        (came / f"{cell.name}.json").write_text(to_json(fake_result(cell.config, 60.0)))
    usual = before["sensitivity"].count("79.55")  # FedSMOO of table 1: the mean of the last ten of a line to 80
    (came / f"{cells[2].name}.json").unlink()  # is there already, with other numbers
    taken = adopt.adopt([came], results)
    assert {p.parent for p in taken} == {results / "sensitivity"}
    assert len(taken) == 9
    after = told()
    assert {name for name in before if after[name] != before[name]} == {"sensitivity"}
    assert (usual, after["sensitivity"].count("79.55"), after["sensitivity"].count("59.66")) == (4, 4, 9)
    assert adopt.adopt([came], results) == []  # all there
    (came / "analysis_01_seed3.json").write_text("{}")
    assert adopt.adopt([came], results) == [results / "gpu" / "analysis_01_seed3.json"]
    (came / f"{cells[2].name}.json").write_text(to_json(fake_result(cells[2].config, 60.0)))
    with pytest.raises(SystemExit, match="has other numbers; nothing was taken"):
        adopt.adopt([came], results)
    (came / f"{cells[2].name}.json").unlink()
    other = cells[0].config.replace(lr=0.3)
    (came / f"{run_name(other)}.json").write_text(to_json(fake_result(other, 60.0)))
    with pytest.raises(SystemExit, match="names this run"):
        adopt.adopt([came], results)


def test_no_two_files_are_one_run_and_every_cell_finds_its_own() -> None:
    said: list[str] = []
    found = collect([], homes(RESULTS), said.append)
    assert said == []
    assert len(found) == len([p for p in RUNS if p.parent in homes(RESULTS)])
    cells = [c for c in experiment("accuracy").cells if c.identity in found]
    assert len(cells) == 8 * 16  # every method in every column
    for cell in cells:
        assert found[cell.identity].config.algorithm_options == cell.config.algorithm_options
        assert found[cell.identity].config.rounds == cell.config.rounds == 800


def test_variants_are_of_their_files_and_in_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    root = RESULTS.parent
    monkeypatch.chdir(root)  # the released code's method lies in a file of its own
    files = [*(root / "experiments/campaign").glob("v*.toml"), *(root / "experiments/released").glob("*.toml")]
    made = {c.identity for file in files for c in read_sweep(file).cells}
    best = [c for file in sorted(CAMPAIGN.glob("14?_best_*.toml")) for c in read_sweep(file).cells]
    # What the search found for FedSMOO, in every column: two are further runs with other radii and decays, and one of
    # the smaller radius is, which its file names again.
    assert len({c.identity for c in best}) == 14 + 8
    assert {c.config.lr_decay for c in best} == {0.998}
    kept = {read(p).identity for p in (RESULTS / "variants").glob("*.json")}
    readme = read_sweep(CAMPAIGN / "14g_readme_mofedsam.toml").cells
    assert [(c.config.rounds, c.config.algorithm_options) for c in readme] == [
        (1000, {"rho": 0.1, "alpha": 0.05}), (1000, {"rho": 0.01, "alpha": 0.1}),
    ]  # fmt: skip
    assert made <= kept <= made | {c.identity for c in (*best, *readme)}
    assert len(made) == 8 + 7 + 10
    assert not kept & {c.identity for name in ("accuracy", "ablation") for c in experiment(name).cells}


def test_the_search_is_of_its_files_and_in_no_table() -> None:
    kept = {read(p).identity for p in (RESULTS / "search").glob("*.json")}
    table = {c.identity for c in experiment("accuracy").cells}
    made = set[str]()
    for number in (13, 14):
        cells = [c for path in sorted(CAMPAIGN.glob(f"{number}?_search_*.toml")) for c in read_sweep(path).cells]
        assert {c.config.holdout for c in cells} == {0.1}
        counted = Counter(c.method for c in cells if not c.method.startswith("FedSMOO, radius "))
        assert counted == dict.fromkeys(experiment("accuracy").about["methods"], 6)  # one budget
        made |= {c.identity for c in cells}
    assert len(made) == 2 * 50
    assert len(kept) >= 6
    assert kept <= made
    assert not kept & table


def test_the_grid_of_the_appendix_is_what_the_paper_printed() -> None:
    printed, cells = published()["search_grid"], read_sweep(CAMPAIGN.parent / "appendix_grid.toml").cells
    assert len(cells) == 288
    proxy = ("FedDyn", "FedSMOO")  # whose decays and radii the paper searched elsewhere

    def values(name: str, *methods: str) -> set[float]:
        found = [c.config for c in cells if c.method in methods]
        return {getattr(c, name) if hasattr(c, name) else c.algorithm_options[name] for c in found}

    others = {c.method for c in cells} - {*proxy}
    assert values("lr", *proxy, *others) == {*printed["lr"]}
    assert values("lr_decay", *proxy) == {*printed["lr_decay_proxy_type"]}
    assert values("lr_decay", *others) == {*printed["lr_decay_sgd_type"]}
    assert values("r", "FedSMOO") == {*printed["r_proxy_type"]}
    assert values("rho", "FedSAM", "MoFedSAM") == {*printed["rho_sgd_type"]}
    assert values("beta", *proxy) == {*printed["beta"]}
    assert values("alpha", "FedCM", "MoFedSAM") == {*printed["alpha"]}
    assert values("lr_server", "FedAdam", "SCAFFOLD") == {*printed["lr_server"]}


def test_a_radius_that_follows_the_learning_rate() -> None:
    for path in CAMPAIGN.glob("1?a_search_fedsmoo_*.toml"):
        (cell,) = [c for c in read_sweep(path).cells if c.method.endswith("follows the learning rate")]
        radius = Schedule.read(cell.config.algorithm_options["r"])
        for number in (0, 1, 400, 799):
            assert radius(number) == pytest.approx(cell.config.lr * cell.config.lr_decay**number, rel=1e-4)


def test_what_remains_of_the_paper_is_in_the_campaign() -> None:
    found = {c.identity for c in experiment("accuracy").cells}

    def of(file: str) -> set[str]:
        return {c.identity for c in read_sweep(CAMPAIGN / file).cells}

    parts = [of(f"15{part}_sensitivity.toml") for part in "abcd"]
    assert set.union(*parts) == {c.identity for c in experiment("sensitivity").cells} - found
    assert [len(part) for part in parts] == [5, 2, 1, 1]
    ablation = {c.identity for c in experiment("ablation", seeds=(1, 2)).cells}
    assert ablation - of("16_ablation_seeds.toml") == of("9_seeds_fedsmoo.toml") & ablation  # FedSMOO has them
    seeds = {c.identity for c in experiment("accuracy", ["10%-of-100"], seeds=(1, 2)).cells}
    files = ("17a_seeds_cifar10", "17b_seeds_cifar10", "18a_seeds_cifar100", "18b_seeds_cifar100")
    rest = [of(f"{name}.toml") for name in files]
    assert [len(r) for r in rest] == [24] * 4
    assert len(set.union(*rest)) == 96
    assert {read(p).identity for p in RUNS} & seeds | set.union(*rest) == seeds
    fewer = [c.identity for c in experiment("accuracy", ["5%-of-200"], seeds=(1, 2)).cells]
    assert of("20_seeds_fewer.toml") == {*fewer}, "a method's settings must be repeated: a sweep's own take their place"
    assert len(fewer) == 8 * 8 * 2


def test_the_first_run_counts_and_the_second_is_kept_with_the_reason() -> None:
    name = "fedsmoo-cifar10-dirichlet-0.1-10of100-resnet18_gn-seed0-786a1ae4.json"
    first, second = from_json(RESULTS / name), from_json(RESULTS / SUPERSEDED / name)
    assert [round(100 * max(r.scores), 2) for r in (first, second)] == [79.77, 80.25]
    assert [round(10 * sum(r.scores[-10:]), 2) for r in (first, second)] == [76.96, 78.14]
    assert json.loads((RESULTS / SUPERSEDED / name).read_text())[SUPERSEDED]["reason"].startswith("replaced without a")
