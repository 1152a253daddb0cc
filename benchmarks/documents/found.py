"""What docs/results.md, README.md and docs/analysis.md say of the paper's tables: see said.py."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.campaign.outside import ROWS, ours
from benchmarks.campaign.plan import minutes_of, of_flgo, plan
from benchmarks.campaign.search import runs as search_runs
from benchmarks.documents import facts as f
from benchmarks.documents.claims import ablation, averages, contradictions, fewer_clients_cost, unequal
from benchmarks.documents.late import faster_decay, late
from benchmarks.figures import splits
from benchmarks.studies.audited import audited, gap
from fedsmoo.paper.cells import best, last_ten
from fedsmoo.sweeps.bases import description

TEN = "10%-of-100 cifar10."
MILD, HARD, SIX, THREE = (TEN + c for c in ("dirichlet-0.6", "dirichlet-0.1", "pathological-6", "pathological-3"))
ALL = (MILD, HARD, SIX, THREE)
SEEDS = (0, 1, 2)
METHODS = ("FedAvg", "FedAdam", "SCAFFOLD", "FedCM", "FedDyn", "FedSAM", "MoFedSAM", "FedSMOO")


def readme() -> list[Any]:
    short = min(g for column in ALL for g in f.gaps(column).values())
    return [
        ("no method's best round is more than {:.1f} points short of the paper's", -short),
        *recommended(),
        *faster_decay(),
    ]


def recommended() -> list[Any]:
    """What the search by samples held out says of FedSMOO on CIFAR-100."""
    tried = [t for t in search_runs() if t.task.startswith("cifar100, dirichlet-0.1")]
    mine, other = ([t for t in tried if t.algorithm == name] for name in ("fedsmoo", "mofedsam"))
    ours, theirs = (max(those, key=lambda t: t.validation) for those in (mine, other))
    papers = next(t for t in mine if t.settings == {"r": 0.1, "lr_decay": 0.9995})
    assert ours.settings == {"r": 0.1, "lr_decay": 0.998}
    return [
        ("the paper's radius of {:.1f} and a learning rate that is multiplied by {:.3f} a round, not by {:.4f}. All "
         "numbers are of Dirichlet 0.1, and of one seed unless they say more. On CIFAR-100 with 10 of 100 clients this "
         "was the best of {:d} settings on samples held out: {:.2f} on the test set, against {:.2f} with the paper's "
         "and {:.2f} for MoFedSAM's best of {:d}",
         ours.settings["r"], ours.settings["lr_decay"], papers.settings["lr_decay"], len(mine), ours.test, papers.test,
         theirs.test, len(other)),
    ]  # fmt: skip


def results() -> list[Any]:
    paper = (averages, unequal, fewer_clients_cost, contradictions, ablation)
    parts = (levels, fewer, released, hundred, *paper, late, the_rest, check, left, convergence, held)
    return [*(piece for part in parts for piece in part()), "a Hanning window of 20 rounds", "splits of 100 clients"]


def levels() -> list[Any]:
    """How methods end, beside each other and beside the paper."""
    seeds = [list(f.runs("accuracy", c, SEEDS)["FedSMOO"].values()) for c in ALL]
    assert not any(f.ahead(c).clear for c in ALL)
    assert all(f.paper(c, "FedSMOO") > f.paper(c, "MoFedSAM") for c in ALL)
    third = [max(f.ends(c, "FedSMOO"), f.ends(c, "MoFedSAM")) - f.ends(c, "FedDyn") for c in ALL]
    gaps = [f.gaps(c) for c in (HARD, THREE, MILD, SIX)]
    spans = [x for found in gaps for x in (min(found.values()), max(found.values()))]
    assert [max(found, key=lambda m: found[m]) for found in gaps] == ["MoFedSAM", "FedAdam", "FedAdam", "FedAdam"]
    others = [gap for m, gap in gaps[1].items() if m != "FedSMOO"]
    firsts = [max(METHODS, key=lambda m: f.paper(c, m)) for c in description("accuracy")["columns"]]
    assert (firsts.count("FedSMOO"), len(firsts)) == (14, 16)
    return [
        ("Over seeds the standard deviation of FedSMOO's last ten is {:.2f}, {:.2f}, {:.2f} and {:.2f} points on "
         "CIFAR-10 (Dirichlet 0.6 and 0.1, Pathological 6 and 3)",
         *(statistics.stdev(map(last_ten, runs)) for runs in seeds)),
        ("FedSMOO at Dirichlet 0.1 with seed 0 was run at two, and its last ten are {:.2f} and {:.2f}",
         f.ends(HARD, "FedSMOO"), *f.superseded("fedsmoo")),
        ("a 95% interval, paired by seed, holds zero: with three seeds it is up to ± {:.1f} points wide",
         max(f.ahead(c).half or 0 for c in ALL)),
        "**Leaving chance** means the first of ten rounds in a row at or above 12% on CIFAR-10",
        ("FedDyn ends {:.1f} to {:.1f} points behind the better of the two (seed 0)", min(third), max(third)),
        ("{:+.1f} to {:+.1f} points at Dirichlet 0.1, {:+.1f} to {:+.1f} at Pathological 3, {:+.1f} to {:+.1f} at "
         "Dirichlet 0.6 and {:+.1f} to {:+.1f} at Pathological 6", *spans),
        ("every method but FedSMOO is at least {:.1f} above", min(others)),
    ]  # fmt: skip


def fewer() -> list[Any]:
    """CIFAR-10 with 10 of 200 clients."""
    columns = [c.replace("10%-of-100", "5%-of-200") for c in ALL]
    ahead = [f.ends(c, "FedSMOO") - f.ends(c, "MoFedSAM") for c in columns]
    assert min(ahead[:3]) > 0
    return [
        ("With 10 of 200 clients (one seed) FedSMOO is ahead by {:.2f} to {:.2f} points in three columns, and {:.2f} "
         "behind at Pathological 3", min(ahead[:3]), max(ahead[:3]), -ahead[3]),
    ]  # fmt: skip


def released() -> list[Any]:
    """What the error that the released code had until October 2024 changes."""
    few = [f"5%-of-200 cifar100.{c}" for c in ("dirichlet-0.1", "pathological-10")]
    cut, box = f.released(THREE), f.runs("accuracy", THREE)["FedSMOO"][0]
    box_of_speed = f.released(HARD, 1000, "fedspeed", form="paper")
    return [
        ("it leaves chance after {:d} rounds and takes {:d} to 68% (the box: {:d} and {:d})",
         *(x for run in (cut, box) for x in (f.leaves_chance(run), f.first_round(run, 68)))),
        ("On CIFAR-100 with 10 of 200 clients its best rounds are {:.1f} and {:.1f} (Dirichlet 0.1, Pathological 10), "
         "the box's {:.1f} and {:.1f}, the paper's {:.1f} and {:.1f}",
         *(best(f.released(c)) for c in few), *(f.tops(c, "FedSMOO") for c in few),
         *(f.paper(c, "FedSMOO") for c in few)),
        ("1,000 rounds, decay 0.998): 83.30 and 86.87 on CIFAR-10 at Dirichlet 0.1 and 0.6. The box's best rounds are "
         "{:.2f} and {:.2f}, those with the error {:.2f} and {:.2f}",
         *(best(f.released(c, 1000, m)) for m in ("fedsmoo", "HeadCut") for c in (HARD, MILD))),
        "(CIFAR-10, 1,000 rounds) and of FedWMSAM's code (CIFAR-100, 500 rounds)",
        "CIFAR-10, Dirichlet 0.1, 10 of 100 clients, with the settings of the released code's README",
        "the README's radius of 0.1 stays far below; the paper's radius of 0.01 comes nearer in its 800 rounds",
        "only MoFedSAM with a radius of 0.1 and FedSpeed by its box",
        ("With 10 of 200 clients and batches of 25 it prints 81.35 and 85.97; the box has {:.2f} and {:.2f}, the error "
         "{:.2f} and {:.2f}",
         *(best(f.released(c.replace("10%-of-100", "5%-of-200"), 1000, m)) for m in ("fedsmoo", "HeadCut")
           for c in (HARD, MILD))),
        ("At Dirichlet 0.1, FedSpeed as released has {:.2f} (printed: 82.26), FedGamma {:.2f} (80.72) and MoFedSAM "
         "with a radius of 0.1 {:.2f} (81.58)",
         *(best(f.released(HARD, 1000, m, **o)) for m, o in (("fedspeed", {"form": "released"}), ("fedgamma", {}),
                                                             ("mofedsam", {"rho": 0.1, "alpha": 0.1})))),
        ('The README gives "0.05 / 0.1" for MoFedSAM\'s momentum, of which 0.1 was run. With the paper\'s radius of '
         "0.01 its best round is {:.2f} after 800 rounds (seed 0), near what is printed", f.tops(HARD, "MoFedSAM")),
        ("FedSpeed by its box, whose ascent step is not normalised, falls to chance there: {:.2f} in its best round, "
         "{:.2f} at the end", best(box_of_speed), last_ten(box_of_speed)),
        ("method prints 29.87 for FedSMOO on CIFAR-100 at Dirichlet 0.1. With the defaults of its code (500 rounds, "
         "5 local epochs, batches of 50, decay 0.998, beta = 10) the box's best round is {:.2f}, and {:.2f} with the "
         "released code's error",
         *(best(f.released("10%-of-100 cifar100.dirichlet-0.1", 500, m)) for m in ("fedsmoo", "HeadCut"))),
    ]  # fmt: skip


def hundred() -> list[Any]:
    """CIFAR-100."""
    few = [f"5%-of-200 cifar100.{c}" for c in ("dirichlet-0.6", "dirichlet-0.1", "pathological-20", "pathological-10")]
    many = [c.replace("5%-of-200", "10%-of-100") for c in few]
    ends = [f.ends(c, "FedSMOO") - f.ends(c, "MoFedSAM") for c in (*many, *few)]
    both = [f.ahead(c) for c in many]
    first, second = sorted(f.chance(f.ahead(c)) for c in (*ALL, *many))[:2]  # by Holm's rule, of eight
    assert first < 0.05 / 8
    assert second > 0.05 / 7
    assert first == f.chance(both[2])
    assert sum(pair.clear for pair in both) == 3
    assert not both[1].clear
    assert all(pair.mean < 0 for pair in both)
    return [
        ("clear of zero in all but one of the four columns with 10 of 100 clients (Dirichlet 0.1; 95% intervals, three "
         "seeds, paired); with Holm's correction for the eight columns that have three seeds, of both data sets, "
         "Pathological 20 alone stays clear. With seed 0 MoFedSAM is first in {:d} of CIFAR-100's eight columns, and "
         "FedSMOO ends {:.1f} to "
         "{:.1f} points below it", sum(f.order(c)[0] == "MoFedSAM" for c in (*many, *few)), -max(ends), -min(ends)),
    ]  # fmt: skip


def the_rest() -> list[Any]:
    adam = [f.tops(c, "FedAdam") - f.paper(c, "FedAdam") for c in ALL]
    said = f.printed()["communication"]
    return [
        ("it ended at {:.1f} and {:.1f} (last ten, Dirichlet 0.1 and Pathological 3; the two files are in",
         *f.superseded("fedadam")),
        ("All tables have 0.01, the default of the authors' released code; with it the best rounds on CIFAR-10 with 10 "
         "of 100 clients are {:.1f} to {:.1f} points above the paper's", min(adam), max(adam)),
        ("To 74% at Pathological 3, the paper's own comparison, it needs {:.2f} times FedAvg's bytes (three seeds; "
         "paper: {:.2f})", f.bytes_to(THREE, "FedSMOO", 74), said["FedSMOO"]),
        ("FedDyn needs {:.2f} of FedAvg's bytes (paper: {:.2f})", f.bytes_to(THREE, "FedDyn", 74), said["FedDyn"]),
        "but FedSMOO's at Dirichlet 0.6 of 10,000",
        "FedSMOO's Hessian at Dirichlet 0.1 is blank",
    ]  # fmt: skip


def left() -> list[Any]:
    """What is not measured, and for how long it would be."""
    seeds = [len(p.left) for p in plan() if "_seeds_" in p.name and "fewer" not in p.name]
    fewer = next(len(p.left) for p in plan() if "20_seeds_fewer" in p.name)
    return [
        ("second and third seeds of six methods with 10 of 100 clients ({:d} runs, {:.0f} minutes) and of all methods "
         "with 10 of 200 ({:d} runs, {:.0f} minutes)",
         sum(seeds), minutes_of("campaign/17", "campaign/18"), fewer, minutes_of("campaign/20")),
        ("final models ({:.0f} minutes, then", minutes_of("campaign/19")),
        "for the Hessian of FedSMOO at Dirichlet 0.1, that of FedAvg",
        ("the rest of the search ({:.0f} minutes)",
         minutes_of("campaign/13", *(f"campaign/14{part}" for part in "abcd"))),
        ("FedSMOO's best settings in all columns ({:.0f} minutes)",
         minutes_of(*(f"campaign/14{part}" for part in "efhi"))),
        ("MoFedSAM with the other settings of the released README ({:.0f} minutes)", minutes_of("campaign/14g")),
        ("the other rows and seeds of FLGo-Bench ({:.0f} minutes with its CNN, {:.0f} minutes with its ResNet, five "
         "seeds each)", minutes_of("flgo`"), minutes_of("flgo_resnet")),
        ("the grid of the paper's appendix ({:.0f} minutes)", minutes_of("appendix_grid")),
    ]  # fmt: skip


def check() -> list[Any]:
    """FLGo-Bench's row of FedAvg beside one seed of ours."""
    (mine,), row = ours(ROWS["CNN, FedAvg"], of_flgo()), ROWS["CNN, FedAvg"]
    return [
        ("FedAvg is {:.2f} points lower, a little more than two of their deviations", row.mean - mine),
        ("of one seed from a mean of five has a deviation of {:.2f} itself", row.deviation * (1 + 1 / 5) ** 0.5),
        "FLGo's releases of 2024 around the table's date (0.3.0 to 0.3.30) do",
        "Without a clip our run diverged in round 17",
    ]


def convergence() -> list[Any]:
    """Theorem 4.1 on a smooth problem."""
    kept = f.read("convergence.json")
    ours, stays, none, plain = (found["rate"] for found in kept["methods"].values())
    assert [f"{kept['radius']:g}", kept["rounds"][0], kept["rounds"][-1]] == ["1", 25, 400]
    return [
        "a network with tanh, Dirichlet 0.1, 10 of 20 clients",
        ("FedSMOO with r = 1 / sqrt(T) falls as T to the power of {:.2f} from {:d} to {:d} rounds, which agrees with "
         "the theorem. With a fixed radius of {:.1f} the power is {:.2f}; FedDyn, which has no perturbation, has "
         "{:.2f}, FedAvg {:.2f}",
         ours, kept["rounds"][0], kept["rounds"][-1], kept["radius"] / kept["rounds"][0] ** 0.5, stays, none, plain),
        "Theorem 4.1 says",
    ]  # fmt: skip


def held() -> list[Any]:
    """Who holds what on CIFAR, and class totals."""
    mild, hard = ((splits.held("cifar100", "dirichlet", u) > 0).sum(1) for u in (0.6, 0.1))
    many, few = (splits.held(name, "dirichlet", 0.1).sum(0) for name in ("cifar100", "cifar10"))
    assert {n for c in (30, 20, 10) for n in (splits.held("cifar100", "pathological", c) > 0).sum(1)} == {30, 20, 10}
    (same,) = {*splits.held("cifar100", "dirichlet", 0.1, replacement=False).sum(0)}
    return [
        ("a little of others: {:d} to {:d} of the 100 classes at Dirichlet 0.6, {:d} to {:d} at 0.1",
         mild.min(), mild.max(), hard.min(), hard.max()),
        ("all the same without: the paper's figures at Dirichlet 0.1. On CIFAR-100 they run from {:d} to {:d} "
         "(standard deviation {:.0f}; {:d} of each class without), on CIFAR-10 from {:,d} to {:,d} (standard deviation "
         "{:,.0f}; the paper's split: 829", many.min(), many.max(), many.std(), same, few.min(), few.max(), few.std()),
        "![Dirichlet 0.6: most fields are pale",
        "![Dirichlet 0.1: two thirds of the fields are white",
        "![Class totals of CIFAR-100 at Dirichlet 0.1:",
        "![Class totals of CIFAR-10 at Dirichlet 0.1:",
    ]  # fmt: skip


def audit() -> list[Any]:
    few = [f"5%-of-200 cifar100.{c}" for c in ("dirichlet-0.1", "pathological-10")]
    columns = [
        [f.tops(c, "FedSMOO") for c in few], [best(f.variant(c, 0.1, 0.9995, perturbation="released")) for c in few],
        [best(f.released(c)) for c in few], [f.paper(c, "FedSMOO") for c in few],
    ]  # fmt: skip
    return [
        ("the best rounds at Dirichlet 0.1 and Pathological 10 are {:.1f} and {:.1f} by the box, {:.1f} and {:.1f} "
         "with `perturbation=released`, {:.1f} and {:.1f} with the layers cut from the head as well",
         *(x for pair in columns[:3] for x in pair)),
        ("and {:.1f} and {:.1f} in the paper", *columns[3]),
        ("FedSpeed as released has {:.2f} where by its box it falls to chance (CIFAR-10, Dirichlet 0.1, 1,000 rounds)",
         best(f.released(HARD, 1000, "fedspeed", form="released"))),
        ("Its table prints 29.87 for FedSMOO on CIFAR-100 at Dirichlet 0.1; with these defaults the box has {:.2f}",
         best(f.released("10%-of-100 cifar100.dirichlet-0.1", 500, "fedsmoo"))),
        "the mean of the last 50 rounds",
        ("{} deviations change the accuracy", audited().partition("outside, in ")[2].partition(" rows")[0]),
        "100 rounds of 3 local epochs, a learning rate of 0.1, a radius of 0.1 where a row has one",
        "digits, a network of two hidden layers, Dirichlet 0.1, 5 of 20 clients",
        ("FedSpeed gains most when its ascent step is normalised ({:+.1f} points", gap("FedSpeed: normalised ascent")),
        ("a momentum that remembers nothing ({:+.1f})", gap("FedNSAM: no memory")),
        "defaults: 500 rounds, 5 epochs, batches of 50",
    ]  # fmt: skip


FOUND: dict[str, Callable[[], list[Any]]] = {
    "README.md": readme, "docs/analysis.md": list, "docs/audit.md": audit, "docs/results.md": results,
}  # fmt: skip
