"""When runs leave chance and reach a target: what docs/results.md says of it, by a literal look into the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def accuracies(method: str, seed: int, column: str = "cifar10-pathological-3-10of100") -> list[float]:
    (path,) = (ROOT / "results").glob(f"{method}-{column}-*-seed{seed}-*.json")
    return [100 * a for a in json.loads(path.read_text())["curve"]["test_accuracy"]]


def test_one_lucky_round_is_not_leaving_chance() -> None:
    """Seed 2 of FedSMOO touches the bar in round 1, and stays above it from round 16."""
    import facts

    column = "10%-of-100 cifar10.pathological-3"
    for method, name in (("fedsmoo", "FedSMOO"), ("feddyn", "FedDyn"), ("fedavg", "FedAvg")):
        for seed in range(3):
            found = accuracies(method, seed)
            last_below = max(k for k, a in enumerate(found, 1) if a < 12)  # none of these falls back later
            assert facts.leaves_chance(facts.runs("accuracy", column, (seed,))[name][seed]) == last_below + 1
    lucky = accuracies("fedsmoo", 2)
    assert lucky[0] > 12 > max(lucky[1:15])
    assert facts.leaves_chance(facts.runs("accuracy", column, (2,))["FedSMOO"][2]) == 16
