"""Claims of the paper, and what docs/results.md says of them: see found.py."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from benchmarks.documents import facts as f
from fedsmoo.paper.cells import best, last_ten
from fedsmoo.sweeps.bases import description
from fedsmoo.sweeps.paired import paired_difference

MILD, HARD, THREE = (f"10%-of-100 cifar10.{c}" for c in ("dirichlet-0.6", "dirichlet-0.1", "pathological-3"))
SEEDS = (0, 1, 2)


def unequal() -> list[Any]:
    """What more unequal clients cost: the mean of the last ten at u = 0.6 less that at 0.1."""
    falls = {
        m: {s: f.ends(MILD, m, s) - f.ends(HARD, m, s) for s in SEEDS} for m in ("FedSMOO", "MoFedSAM")
    }  # fmt: skip
    tops = [
        {s: f.tops(MILD, m, s) - f.tops(HARD, m, s) for s in SEEDS} for m in ("FedSMOO", "MoFedSAM")
    ]  # fmt: skip
    pair, top = paired_difference(*falls.values()), paired_difference(*tops)
    assert pair is not None
    assert top is not None
    assert not pair.clear
    assert not top.clear
    assert min(f.ends(HARD, "FedSMOO", s) for s in SEEDS) == f.ends(HARD, "FedSMOO")
    said = [f.paper(MILD, m) - f.paper(HARD, m) for m in ("FedSMOO", "MoFedSAM", "FedAvg")]
    assert said[0] - said[1] < top.mean - (top.half or 0)
    return [
        ("On CIFAR-10, from Dirichlet 0.6 to 0.1, it loses {:.2f} ± {:.2f} points of its last ten and MoFedSAM {:.2f} "
         "± {:.2f} (mean and standard deviation, three seeds). The difference of the two, {:+.2f} ± {:.2f} (95% "
         "interval, paired), is not clear of zero. FedDyn loses {:.1f} and FedAvg {:.1f} (seed 0). The paper says "
         "{:.1f} for FedSMOO and {:.1f} for MoFedSAM (best round), and prints {:.1f} for FedAvg. By our best rounds "
         "the difference is {:+.2f} ± {:.2f}, which does not hold the paper's {:+.2f}",
         *(x for mine in falls.values() for x in (statistics.mean(mine.values()), statistics.stdev(mine.values()))),
         pair.mean, pair.half, *(f.ends(MILD, m) - f.ends(HARD, m) for m in ("FedDyn", "FedAvg")), *said,
         top.mean, top.half, said[0] - said[1]),
    ]  # fmt: skip


def fewer_clients_cost() -> list[Any]:
    """What 10 of 200 clients in place of 10 of 100 cost on CIFAR-100."""
    kinds = ("dirichlet-0.6", "dirichlet-0.1", "pathological-20", "pathological-10")
    places = [[f"{who} cifar100.{kind}" for who in ("10%-of-100", "5%-of-200")] for kind in kinds]
    lost = {m: [f.ends(a, m) - f.ends(b, m) for a, b in places] for m in ("FedSMOO", "MoFedSAM")}
    return [
        ("From 10 of 100 to 10 of 200 clients it loses {:.1f}, {:.1f}, {:.1f} and {:.1f} points of its last ten "
         "(Dirichlet 0.6 and 0.1, Pathological 20 and 10; seed 0), MoFedSAM at most {:.1f}. The paper prints {:.1f}, "
         "{:.1f}, {:.1f} and {:.1f} for FedSMOO (best round)",
         *lost["FedSMOO"], max(lost["MoFedSAM"]), *(f.paper(a, "FedSMOO") - f.paper(b, "FedSMOO") for a, b in places)),
    ]  # fmt: skip


def averages() -> list[Any]:
    """What SAM, its momentum and FedSMOO bring on average over the columns of table 1: in the paper, and in ours."""
    places = list(description("accuracy")["columns"])
    assert len(places) == 16
    pairs = (("FedSAM", "FedAvg"), ("MoFedSAM", "FedSAM"), ("FedSMOO", "MoFedSAM"))
    paper, top, end = (
        [statistics.fmean(measure(c, a) - measure(c, b) for c in places) for a, b in pairs]
        for measure in (f.paper, f.tops, f.ends)
    )
    return [
        'The paper says that FedSAM is "only about 1%" above FedAvg "on average", and MoFedSAM "about 5%" above FedSAM',
        *(("{} − {}: {:+.2f} points in the paper, {:+.2f} and {:+.2f} in ours", a, b, *points)
          for (a, b), *points in zip(pairs, paper, top, end, strict=True)),
    ]  # fmt: skip


def contradictions() -> list[Any]:
    """Claims of the paper that the runs do not bear out."""
    drifts = [f.drift(c, m) for m in ("FedSMOO", "FedSAM") for c in (HARD, MILD)]
    sam_mild, sam_hard, smoo_mild, smoo_hard = f.printed()["flatness"]["client_drift"]
    needed = [[hit.round for hit in f.to(THREE, m, 74)] for m in ("FedSMOO", "FedAvg", "MoFedSAM")]
    ours, plain, least = ([statistics.mean(n), statistics.stdev(n)] for n in needed)
    alone = {r["algorithm"]: r["seconds_per_round"] for r in f.read("gpu/round.json")}
    seconds = [alone["fedsmoo"], alone["fedavg"]]
    block = f.printed()["rounds_to"]["10%-of-100"]
    printed = [block[m][block["columns"].index("cifar10.pathological-3 to 74")] for m in ("FedSMOO", "FedAvg")]
    times = [f.printed()["seconds_per_round"][m] * n for m, n in zip(("FedSMOO", "FedAvg"), printed, strict=True)]
    slowest = f.runs("accuracy", THREE)["FedAvg"][0].curve["seconds_train"]
    return [
        ("{:.2f} and {:.2f} against {:.2f} and {:.2f} (Dirichlet 0.1 and 0.6; seed 0); the paper prints {:.2f} and "
         "{:.2f} against {:.2f} and {:.2f}", *drifts, smoo_hard, smoo_mild, sam_hard, sam_mild),
        ("To 74% at Pathological 3 FedSMOO needs {:.0f} ± {:.0f} rounds and FedAvg {:.0f} ± {:.0f} (three seeds). With "
         "the seconds of a round measured alone ({:.3f} and {:.3f}) that is {:.1f} times FedAvg's time. The paper "
         "prints {:d} and {:d} rounds, and has FedSMOO {:.2f} times as fast as FedAvg", *ours, *plain, *seconds,
         ours[0] * seconds[0] / (plain[0] * seconds[1]), *printed, times[1] / times[0]),
        ("The seconds to 74% are of training alone and contain the first round, in which some runs compiled (of "
         "FedAvg's {:.1f} with seed 0 it took {:.1f})", sum(slowest[: needed[1][0]]), slowest[0]),
        ("it has 74% after {:.0f} ± {:.0f} rounds, for {:.1f} of FedSMOO's bytes", *least,
         f.bytes_to(THREE, "MoFedSAM", 74, "FedSMOO")),
    ]  # fmt: skip


def ablation() -> list[Any]:
    parts = list(f.runs("ablation", "", SEEDS).values())
    assert all(runs.keys() == {*SEEDS} for runs in parts)
    gains = {measure: [f.less(b, a, measure) for a, b in pairwise(parts)] for measure in (last_ten, best)}
    for regulariser, sam, correction in gains.values():
        assert regulariser.clear
        assert correction.clear
        assert not sam.clear
    said = [b - a for a, b in pairwise(f.printed()["ablation"].values())]
    alone = gains[best][1]
    assert alone.mean + (alone.half or 0) < said[1]
    early = [[f.leaves_chance(run) for run in runs.values()] for runs in parts[1:]]
    needed = [[f.first_round(run, 68) for run in runs.values()] for runs in parts[1:]]
    block = f.printed()["rounds_to"]["10%-of-100"]
    printed = block["FedSMOO"][block["columns"].index("cifar10.pathological-3 to 68")]
    three = "the regulariser {:+.2f} ± {:.2f}, SAM {:+.2f} ± {:.2f}, the correction {:+.2f} ± {:.2f}"
    return [
        ("95% intervals over three seeds, paired. By the last ten: " + three + ". By the best round: " + three
         + ". In the paper: {:.2f}, {:.2f} and {:.2f}",
         *(x for pairs in gains.values() for pair in pairs for x in (pair.mean, pair.half)), *said),
        ("FedDyn, which has no perturbation, leaves chance after {:.0f} ± {:.0f} rounds; with a perturbation of r = "
         "0.1 after {:.0f} ± {:.0f}; with the correction, which turns the perturbation away from the plain gradient, "
         "after {:.0f} ± {:.0f}. To 68% they take {:.0f} ± {:.0f}, {:.0f} ± {:.0f} and {:.0f} ± {:.0f} rounds (mean "
         "and standard deviation, three seeds); the paper prints {:d} for FedSMOO. FedSAM, at a tenth of that radius, "
         "leaves chance after {:d} (seed 0)",
         *(x for n in (*early, *needed) for x in (statistics.mean(n), statistics.stdev(n))), printed,
         f.leaves_chance(f.runs("accuracy", THREE)["FedSAM"][0])),
    ]  # fmt: skip
