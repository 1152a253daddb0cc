"""Measured numbers by name, for the sentences of the documents: all from the files in results/."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.cpu.ranks import round_seconds
from benchmarks.documents import machines, tables
from fedsmoo.core import Algorithm
from fedsmoo.paper.cells import best, hits, last_ten
from fedsmoo.paper.experiments import experiment, published
from fedsmoo.paper.reproduce import homes
from fedsmoo.runs.build import make_algorithm
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.traffic import Reached
from fedsmoo.sweeps.cost import gradients_of_a_step
from fedsmoo.sweeps.paired import PairedDifference, paired_difference
from fedsmoo.sweeps.results import Measured, collect, from_json

RESULTS = Path(__file__).parents[2] / "results"
printed = published


@cache
def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


@cache
def everything() -> dict[str, Measured]:
    return collect([], homes(RESULTS))


@cache
def runs(table: str, column: str = "", seeds: tuple[int, ...] = (0,)) -> dict[str, dict[int, Measured]]:
    """The measured runs of a column of one of the paper's tables, by method and seed."""
    out: dict[str, dict[int, Measured]] = {}
    for cell in experiment(table, (column,) if column else (), seeds=seeds).cells:
        if cell.identity in everything():
            out.setdefault(cell.method, {})[cell.config.seed] = everything()[cell.identity]
    return out


def ends(column: str, method: str, seed: int = 0, table: str = "accuracy") -> float:
    """The mean of the last ten evaluations, in per cent."""
    return last_ten(runs(table, column, (seed,))[method][seed])


def tops(column: str, method: str, seed: int = 0, table: str = "accuracy") -> float:
    """The best round on the test part, in per cent."""
    return best(runs(table, column, (seed,))[method][seed])


def variant(column: str, r: float, lr_decay: float, **more: str) -> Measured:
    """FedSMOO in a column of the table with another radius, decay or option than the paper's."""
    config = runs("accuracy", column)["FedSMOO"][0].config
    wanted = identity(config.replace(lr_decay=lr_decay, algorithm_options={**config.algorithm_options, "r": r, **more}))
    return next(run for path in (RESULTS / "variants").glob("*.json") if (run := from_json(path)).identity == wanted)


def released(column: str, rounds: int = 800, method: str = "HeadCut", **options: Any) -> Measured:
    """A run of experiments/released: the released code's FedSMOO, or another method with its README's settings."""
    task = runs("accuracy", column)["FedAvg"][0].config
    same = ("dataset", "partition", "clients")
    for path in sorted((RESULTS / "variants").glob("*.json")):
        run = from_json(path)
        alike = all(getattr(run.config, n) == getattr(task, n) for n in same)
        alike = alike and run.config.rounds == rounds and run.config.algorithm.lower().endswith(method.lower())
        if alike and all(getattr(method_of(run), n) == v for n, v in options.items()):
            return run
    raise LookupError(column)


def method_of(run: Measured) -> Algorithm:
    """The method of a run with all its hyper-parameters."""
    return make_algorithm(run.config.algorithm, run.config.algorithm_options)


def ahead(column: str, one: str = "FedSMOO", other: str = "MoFedSAM") -> PairedDifference:
    """By how much one method's last ten are above another's, paired over the seeds that both have."""
    found = runs("accuracy", column, (0, 1, 2))
    return less(found[one], found[other])


def chance(pair: PairedDifference) -> float:
    """How often a difference of nothing would look at least as large (Student's t, both sides)."""
    from scipy.stats import t  # late: it takes a while to import

    assert pair.half is not None
    free = len(pair.seeds) - 1
    return float(2 * t.sf(abs(pair.mean) / pair.half * t.ppf(0.975, free), free))


def less(
    one: dict[int, Measured], other: dict[int, Measured], measure: Callable[[Measured], float] = last_ten
) -> PairedDifference:
    """One method's runs less another's in some measure, paired by seed."""
    a, b = ({seed: measure(run) for seed, run in found.items()} for found in (one, other))
    pair = paired_difference(a, b)
    assert pair is not None
    return pair


def first_round(run: Measured, accuracy: float) -> int:
    """The first round at or above a test accuracy, in per cent."""
    return next(i + 1 for i, a in enumerate(run.scores) if 100 * a >= accuracy)


def leaves_chance(run: Measured, bar: float = 12, window: int = 10) -> int:
    """The first round of the first ten evaluated in a row that are all at or above a test accuracy, in per cent.

    One lucky round is none: a seed of FedSMOO has 13.3% in round 1 and 10.0% in the fourteen that follow.
    """
    above = [100 * a >= bar for a in run.scores]
    first = next(k for k in range(len(above) - window + 1) if all(above[k : k + window]))
    return [r.round for r in run.history if r.score is not None][first]


def paper(column: str, method: str) -> float:
    """The accuracy that the paper prints."""
    who, _, task = column.partition(" ")
    block = printed()["accuracy"][who]
    return block[method][block["columns"].index(task)]


def beyond(column: str, method: str) -> float:
    """Our best round less the paper's, the mean over all seeds as in the table."""
    return statistics.fmean(map(best, runs("accuracy", column, (0, 1, 2))[method].values())) - paper(column, method)


def gaps(column: str) -> dict[str, float]:
    """The same of every method that was measured."""
    return {m: beyond(column, m) for m in runs("accuracy", column)}


def to(column: str, method: str, target: float) -> list[Reached]:
    """When each seed first was at or above a test accuracy (per cent), with what was spent by then; all three were."""
    found = hits(list(runs("accuracy", column, (0, 1, 2))[method].values()), target / 100)
    assert len(found) == 3
    return found


def bytes_to(column: str, method: str, target: float, other: str = "FedAvg") -> float:
    """Bytes until a test accuracy (per cent) relative to another method's, over the three seeds that both have."""
    one, two = (sum(hit.bytes for hit in to(column, m, target)) for m in (method, other))
    return one / two


def order(column: str, measure: Any = last_ten) -> list[str]:
    """Methods from the best down, of seed 0."""
    mine = {m: measure(r[0]) for m, r in runs("accuracy", column).items()}
    return sorted(mine, key=lambda m: -mine[m])


def sizes() -> dict[str, int]:
    """Weights of ResNet-18-GN: those that meet a pixel of a 32 x 32 image, and all of them."""
    run = next(iter(runs("accuracy", "10%-of-100 cifar10.dirichlet-0.1").values()))[0]
    return {"live": run.facts["parameters"], "full": run.facts["parameters_full"]}


def groups(method: str) -> dict[str, list[float]]:
    """Microseconds and launches of a step by what its kernels do."""
    kernels = next(r for r in read("gpu/round.json") if r["algorithm"] == method)["kernels_per_step"]
    out: dict[str, list[float]] = {}
    for name, entry in kernels.items():
        group = next((g for start, g in tables.GROUPS.items() if name.startswith(start)), "other")
        mine = out.setdefault(group, [0.0, 0.0])
        mine[0], mine[1] = mine[0] + entry["us"], mine[1] + entry["launches"]
    return out


def launches(method: str) -> float:
    """Launches of one gradient."""
    return sum(
        n for g, (_, n) in groups(method).items() if g not in ("other", "the method", "batch: gather and augment")
    )


def method_us(method: str) -> float:
    return groups(method)["the method"][0]


TF32_ROUNDS = "round_tf32-94494db9.json", "round_tf32.json"  # before tiles of two warps, and now


def tf32_round(method: str, file: str) -> float:
    """Seconds of a method's round in tf32."""
    return next(r["seconds_per_round"] for r in read(f"gpu/{file}") if r["algorithm"] == method)


def tf32_gradient() -> tuple[float, float]:
    """Milliseconds of a gradient of ten clients in tf32, and that over the time in bf16."""
    timed = read("gpu/kernels_precisions.json")["scaling"]
    ten = {t["precision"]: t["gradient_ms"] for t in timed if t["clients"] == 10 and t["overlap"]}
    return ten["tf32"], ten["tf32"] / ten["bf16"]


def gradients_of_ten() -> tuple[float, float, float]:
    """Milliseconds of a gradient: products waited for, turned, and by loads alone."""
    made = {e["version"]: e for e in read("gpu/history.json")}
    waited, turned = made["products of boxes are waited for"], made["the same products turned, which need no wait"]
    return waited["gradient_ms"], turned["gradient_ms"], float(waited["note"].split(" ms")[0].split()[-1])


def groups_beside_the_library() -> tuple[float, ...]:
    """Times of our ways for groups over the library's: least and most, of each channel alone, of few, and folded."""
    rows = [r for r in read("gpu/convolutions.json")["rows"] if "few" in r]
    alone = [r["few"] / r["grouped"] for r in rows if r["layer"].startswith("depthwise")]
    few, folded = ([r[w] / r["grouped"] for r in rows if "groups of" in r["layer"]] for w in ("few", "folded"))
    return tuple(bound(found) for found in (alone, few, folded) for bound in (min, max))


def above_the_plain_step() -> list[int]:
    """Per cent: the most of the other methods, of the two FedLESAM variants, and FedSMOO's above FedSAM."""
    seconds = {r["algorithm"]: r["seconds_per_round"] for r in [*read("gpu/round.json"), *read("gpu/methods.json")]}
    plain = {1: statistics.median(t for n, t in seconds.items() if tables.steps_plainly(n)), 2: seconds["fedsam"]}
    more = {n: round(100 * (t / plain[gradients_of_a_step(make_algorithm(n, {}))] - 1)) for n, t in seconds.items()}
    special = {n: more.pop(n) for n in ("fedlesam-s", "fedlesam-d", "fedsmoo")}
    return [max(more.values()), max(special["fedlesam-s"], special["fedlesam-d"]), special["fedsmoo"]]


def traces_over_tops() -> list[float]:
    return [h["trace"] / h["top"] for r in everything().values() if (h := r.facts.get("hessian")) and h.get("top")]


def traces_over_tops_printed() -> list[float]:
    block = printed()["flatness"]
    return [a / b for a, b in zip(block["hessian_trace"], block["hessian_top_eigenvalue"], strict=True)]


def landscape_losses() -> dict[str, float]:
    """The test loss at the final models of FedSAM and FedSMOO."""
    return {name: m["landscape"]["centre"] for name, m in read("gpu/analysis_01.json")["models"].items()}


def ring_ms(megabytes: float, ranks: int) -> list[float]:
    """Milliseconds of a ring all-reduce over the links of docs/distributed.md."""
    return [1000 * megabytes * 1e6 * 2 * (ranks - 1) / ranks / speed for speed in machines.LINKS.values()]


def most_gain(cohort: int, clients: int, ranks: int) -> float:
    """How much faster several ranks are than one at best: clients dealt evenly, over the fastest link."""
    found = read("ranks.json")["seconds_by_clients"]
    one = round_seconds(found, cohort, clients, 1, 1e9)
    return one / round_seconds(found, cohort, clients, ranks, machines.LINKS["NVLink"], stateful=False)


def deviation_of_totals(u: float, clients: int, classes: int = 10, samples: int = 500) -> float:
    """The deviation of a class's total over Dirichlet clients that draw with replacement."""
    p = (1 / classes) * (1 - 1 / classes)
    return math.sqrt(clients * (samples * p + samples * (samples - 1) * p / (classes * u + 1)))


def drift(column: str, method: str) -> float:
    """Mean drift of the last ten rounds, before the server's step."""
    return statistics.fmean(runs("accuracy", column)[method][0].curve["drift"][-10:])


def superseded(method: str) -> list[float]:
    """The mean of the last ten, in per cent, of runs that others took the place of, by name."""
    return [last_ten(from_json(p)) for p in sorted((RESULTS / "superseded").glob(f"{method}-cifar10-*-seed0-*.json"))]
