"""The tables in README and docs are those that the measured results give."""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.campaign import best, columns, outside, plan
from benchmarks.documents import prose, tables
from benchmarks.figures import sensitivity
from fedsmoo.cli import main
from fedsmoo.runs.config import Config

ROOT = Path(__file__).parents[2]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call a script of benchmarks/ with some words, in this process; what is out of date ends it."""

    def calling(script: ModuleType, *words: str) -> None:
        monkeypatch.setattr(sys, "argv", [script.__name__, *words])
        script.main()

    return calling


def test_benchmark_tables_are_up_to_date(call: Callable[..., None]) -> None:
    call(tables, "--check")


def test_ratios_at_equal_precision_stand_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four times our seconds in the precision of the authors' code are a quarter of the ratio."""
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
    call: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    call(prose, "--check", "--mutate")
    noticed, of = (int(word) for word in capsys.readouterr().out.split()[:3:2])
    assert of > 100
    assert noticed >= 0.95 * of


def test_a_sentence_is_held_to_what_fills_its_holes() -> None:
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


def test_the_plan_estimates_minutes_from_what_steps_took() -> None:
    """Medians from the files themselves: 5 epochs of 10 batches are 50 steps, and SAM's take two gradients."""
    found: dict[int, list[float]] = {1: [], 2: []}
    for path in (p for p in (ROOT / "results").rglob("*-seed*.json") if p.parent.name not in ("superseded", "flgo")):
        value = json.loads(path.read_text())
        config, curve = value["config"], value["curve"]
        if value.get("packed", 1) >= 3 and config["batch_size"] == 50 and config["precision"] == "bf16":
            twice = config["algorithm"] in ("fedsam", "mofedsam", "fedsmoo")
            steps = config["local_epochs"] * (9 if config.get("holdout") else 10) / (config["clients"] / 100)
            spent = sum(curve["seconds_train"]) + sum(curve["seconds_eval"])
            found[1 + twice].append(spent / config["rounds"] / steps)
    common = {"model": "resnet18_gn", "clients": 100, "cohort": 10, "batch_size": 50, "local_epochs": 5, "rounds": 800}
    for algorithm, gradients in (("fedavg", 1), ("fedsmoo", 2)):
        one = 800 * 50 * statistics.median(found[gradients])
        config = Config(algorithm=algorithm, **common)
        assert plan.seconds(config) == pytest.approx(one, rel=1e-6)
        assert plan.seconds(config.replace(holdout=0.1)) == pytest.approx(one * 45 / 50, rel=1e-6)
        assert plan.seconds(config.replace(cohort=20, rounds=400)) == pytest.approx(one, rel=1e-6)
    (timed,) = (
        r for r in json.loads((ROOT / "results/gpu/modules.json").read_text())["rows"] if r["model"] == "resnet"
    )
    of_flgo = Config(algorithm="fedavg", **{**common, "model": "resnet18_gn_cifar", "cohort": 20})
    assert plan.seconds(of_flgo) == pytest.approx(800 * 2 * timed["ours"])  # of 50 steps of ten clients
    assert plan.seconds(config.replace(model="cnn_gn")) is None
    rows = {f.name.strip("`"): f for f in plan.plan()}
    assert rows["campaign/16_ablation_seeds"].left == []  # made
    assert rows["campaign/5_second_seeds"].left == []  # named again by later files
    assert len(rows["campaign/20_seeds_fewer"].left) <= rows["campaign/20_seeds_fewer"].runs == 8 * 8 * 2


def test_a_faster_decay_beside_the_paper_s_in_all_columns() -> None:
    """By a literal look into the files: one run lies with the sensitivity, two with the variants, many are missing."""
    found: dict[tuple[str, float], str] = {}
    for path in (p for place in ("sensitivity", "variants") for p in (ROOT / "results" / place).glob("fedsmoo-*.json")):
        value = json.loads(path.read_text())
        config, options = value["config"], value["config"]["algorithm_options"]
        if config["rounds"] == 800 and config["lr_decay"] == 0.998 and options.get("perturbation", "paper") == "paper":
            end = 100 * statistics.fmean(value["curve"]["test_accuracy"][-10:])
            place = f"{'10%-of-100' if config['clients'] == 100 else '5%-of-200'} {config['dataset']}"
            found[f"{place}.{config['partition']}", options["r"]] = f"{end:.2f}"
    assert found["10%-of-100 cifar10.dirichlet-0.1", 0.1]
    assert found["5%-of-200 cifar100.dirichlet-0.1", 0.03]
    rows = [line.strip("| ").split(" | ") for line in best.best().splitlines() if line.startswith(("| 10%", "| 5%"))]
    assert len(rows) == 16
    shown = {(row[0], r): cell.strip() for row in rows for r, cell in zip((0.1, 0.03), row[2:4], strict=True)}
    assert {k: v for k, v in shown.items() if v} == found


def test_the_picture_of_the_sensitivity_has_the_rows_of_its_table() -> None:
    text = (ROOT / "docs" / "results.md").read_text().partition("<!-- table: sensitivity --seeds 0 -->")[2]
    rows = dict(re.findall(r"^\| ([a-z ]+ [\d.]+) \| 1 \| ([\d.]+) \|", text.partition("<!-- /table -->")[0], re.M))
    found = {f"{s} {v}": run for s, runs in sensitivity.panels().items() for v, run in runs.items()}
    assert {name: f"{10 * sum(run.scores[-10:]):.2f}" for name, run in found.items()} == rows
    said = re.findall(r"<!-- (.*?) -->", (ROOT / "docs" / "figures" / "sensitivity.svg").read_text())
    values = {name.rpartition(" ")[2] for name in rows}
    assert values <= {word.removesuffix(", the paper's") for word in said}, "run make figures"


def test_targets_and_drift_in_all_columns() -> None:
    """Two cells by a literal walk over their files: the column has no printed target, so the harder one's counts."""

    def curve(method: str) -> dict[str, list[float]]:
        (path,) = (ROOT / "results").glob(f"{method}-cifar10-dirichlet-0.6-10of200-*-seed0-*.json")
        return json.loads(path.read_text())["curve"]

    first = {m: next(k for k, a in enumerate(curve(m)["test_accuracy"], 1) if a >= 0.68) for m in ("fedavg", "fedsmoo")}
    lines = columns.reached().splitlines()
    cells = next(x for x in lines if x.startswith("| 5%-of-200 cifar10.dirichlet-0.6 ")).split(" | ")
    # FedSMOO sends and receives two vectors where FedAvg has one.
    assert cells[1:3] == ["68%", f"{first['fedavg']} (1.00)"]
    assert cells[-1] == f"{first['fedsmoo']} ({2 * first['fedsmoo'] / first['fedavg']:.2f}) |"
    drift = next(line for line in columns.drift().splitlines() if line.startswith("| FedSAM ")).split(" | ")
    assert drift[5:7] == [f"{statistics.fmean(curve('fedsam')[n][-10:]):.3f}" for n in ("drift", "drift_after")]


def test_rows_of_flgo_are_judged_by_its_deviations() -> None:
    row = outside.ROWS["CNN, FedAvg"]  # 69.87 ± 0.50
    assert [outside.verdict(row, seeds) for seeds in ([], [70.0, 71.6], [70.6, 71.2], [68.5])] == [
        "not measured", "within two deviations", "+1.03", "-1.37",
    ]  # fmt: skip


def test_distances_to_the_paper_in_sentences_are_those_of_the_tables_beside_them() -> None:
    """Over all seeds, as in the last column of each table."""
    text = (ROOT / "docs" / "results.md").read_text()
    tables = dict(re.findall(r"800 rounds: 10%-of-100 (cifar10\.\S+)\*\*\n\n((?:\|.*\n)+)", text))
    words = " ".join(text.split())
    spans = []
    for name, title in (("dirichlet-0.1", "Dirichlet 0.1"), ("pathological-3", "Pathological 3"),
                        ("dirichlet-0.6", "Dirichlet 0.6"), ("pathological-6", "Pathological 6")):  # fmt: skip
        off = [float(gap) for gap in re.findall(r"([+-][\d.]+) \|$", tables[f"cifar10.{name}"], re.M)]
        assert len(off) == 8
        found = re.search(rf"([+-][\d.]+) to ([+-][\d.]+)(?: points)? at {title}", words)
        assert found is not None
        spans += [float(found[1]) - min(off), float(found[2]) - max(off)]
    assert spans == pytest.approx([0] * 8, abs=0.0501)


def test_all_runs_of_cifar100_read_the_order_of_class_folders_as_said() -> None:
    """What of them has a fingerprint records one order: that of folders and files by name, labels rising."""
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    assert "All runs on CIFAR-100 read the images in the order of class folders" in text
    runs = [json.loads(path.read_text()) for path in (ROOT / "results").rglob("*-cifar100-*-seed*.json")]
    orders = {value["data"]["order"] for value in runs if "data" in value}
    assert orders == {"d65f50e878e0d1f94178d3bfcac4d06073f11cfe09a0baf3689b866a6be9e15a"}
    older = [value["config"] for value in runs if "data" not in value]
    assert older
    assert {config["seed"] for config in older} == {0}
