"""Settings that change no number, in combinations that are drawn: the numbers are those of the plainest run.

Where clients' vectors and samples lie, who trains the clients and how many at once, how often a run is saved, stopped,
resumed, continued or copied: each of them is tested elsewhere, alone. What nobody thought of together is tested here.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from kinds import EACH_KIND, settings_of

import fedsmoo
from fedsmoo import Result
from fedsmoo.engines.threads import Threads
from fedsmoo.runs.build import assemble
from fedsmoo.runs.settings.merge import make_config

NORMED = f"{Path(__file__).parents[1] / 'engines' / 'statistics' / 'nets.py'}:normed"
MODELS = ({"model": "softmax"}, {"model": "mlp", "model_options": {"hidden": 6}}, {"model": NORMED, "batch_size": 16})
SAMPLINGS = ("uniform", "bernoulli", "weighted", "round_robin", "power_of_choice")


def drawn(rng: random.Random) -> dict[str, Any]:
    """A small run of any kind: what decides its numbers."""
    clients = rng.randint(3, 6)
    settings = {
        **settings_of(rng.choice(list(EACH_KIND))), **rng.choice(MODELS), "clients": clients, "lr": 0.05,
        "cohort": rng.randint(2, clients), "rounds": rng.randint(3, 5), "local_steps": rng.randint(1, 3),
        "dataset": "digits", "dtype": "float64", "device": "cpu", "seed": rng.randint(0, 999), "partition": "iid",
        "eval_every": rng.choice([1, 2, 3]), "holdout": 0.2, "sampling": rng.choice(SAMPLINGS),
    }  # fmt: skip
    if settings["model"] == NORMED:
        settings["statistics"] = rng.choice(["averaged", "local", "recomputed"])
    if settings.get("privacy"):  # which hides no statistics, and is accounted for with some samplings only
        settings |= {"sampling": "bernoulli", "model": "mlp", "statistics": "averaged"}
    if settings.get("wire"):  # rounded weights lie on the kinks of a ReLU, where rounding decides about gradients
        settings |= {"model": "softmax", "model_options": {}, "statistics": "averaged"}
    if settings["algorithm"] == "fedrep":  # whose head is the last of several layers
        settings |= {"model": "mlp", "statistics": "averaged"}
    return settings


def machine(rng: random.Random) -> dict[str, Any]:
    """What changes the last bits at most."""
    found: dict[str, Any] = {"engine": rng.choice(["serial", "threads", "threads", "vmap", "batched"])}
    found |= {"table": rng.choice(["device", "disk", "disk"]), "samples_in": rng.choice(["device", "host"])}
    return found | ({"chunk": rng.randint(1, 3)} if found["engine"] in ("vmap", "batched") else {})


def at_once(settings: dict[str, Any], rng: random.Random, folder: Path) -> Result:
    run = assemble(make_config(settings))
    if isinstance(run.engine, Threads):
        run.engine = Threads(run.setup, run.engine.table, threads=rng.choice([1, 2, 6]))
    return run.run()


def stopped(settings: dict[str, Any], rng: random.Random, folder: Path) -> Result:
    """Stopped and resumed, once or twice."""
    stops = sorted({rng.randrange(1, settings["rounds"]) for _ in range(2)})
    go: Callable[..., Result] = partial(fedsmoo.run, settings, folder)
    for last in stops:
        go(callback=lambda record, last=last: record.round < last, save_every=rng.choice([0, 1, 2]))
        go = partial(fedsmoo.resume, folder)
    return go()


def copied(settings: dict[str, Any], rng: random.Random, folder: Path) -> Result:
    """Stopped, saved as another folder, loaded, continued, saved and loaded again."""
    first = fedsmoo.run(settings, folder / "a", callback=lambda record: record.round < 2)
    first.save(folder / "b")
    fedsmoo.load(folder / "b").continue_(1, progress=False).save(folder / "c")
    result = fedsmoo.load(folder / "c")
    left = settings["rounds"] - 3
    return result.continue_(left, progress=False) if left else result


def vectors(result: Result) -> dict[str, torch.Tensor]:
    rows = {f"client {i} {n}": v for i, row in result.simulation.engine.table.items() for n, v in row.items()}
    return rows | {f"server {n}": v for n, v in result.server.items()}


WAYS = {"at once": at_once, "stopped": stopped, "copied": copied}


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.filterwarnings("ignore::fedsmoo.core.errors.FedsmooWarning")
def test_a_drawn_run_has_the_numbers_of_the_plainest(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    settings = drawn(rng)
    plain = assemble(make_config(settings | {"engine": "serial", "table": "device"})).run()
    expected, losses = vectors(plain), [(r.cohort, r.train_loss, r.drift) for r in plain.history]
    for way in WAYS:
        found = WAYS[way](settings | machine(rng), rng, tmp_path / way)
        assert [(r.cohort, *map(approximately, (r.train_loss, r.drift))) for r in found.history] == losses, way
        mine = vectors(found)
        assert mine.keys() == expected.keys(), way
        for name, v in expected.items():
            torch.testing.assert_close(
                mine[name], v, rtol=1e-8, atol=1e-8, msg=lambda m, n=name, w=way: f"{w} {n}: {m}"
            )


def approximately(value: float | None) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-8, abs=1e-12)
