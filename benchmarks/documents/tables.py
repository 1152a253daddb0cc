"""Writes the tables of benchmarks in README.md and docs/*.md from results/gpu/*.json and other files in results/, and
the demo's table from results/demo.txt, which is what ``make demo`` prints, without its seconds.

PYTHONPATH=src python -m benchmarks.documents.tables [--check]    # --check: fail if a table is out of date
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.campaign import columns
from benchmarks.campaign.best import best
from benchmarks.campaign.leads import leads
from benchmarks.campaign.outside import outside
from benchmarks.campaign.plan import campaign
from benchmarks.campaign.search import search
from benchmarks.documents import general, glance, machines
from benchmarks.documents.flatness import flatness, landscape
from benchmarks.drills.table import drills
from benchmarks.studies.audited import audited
from fedsmoo.core import Algorithm
from fedsmoo.kernels.resnet18.shapes import CONVS, STEM
from fedsmoo.paper.experiments import published
from fedsmoo.runs.build import algorithm_class, make_algorithm
from fedsmoo.runs.storage.files import write_together
from fedsmoo.sweeps.cost import gradients_of_a_step

ROOT = Path(__file__).parents[2]
GPU = ROOT / "results" / "gpu"
TF32 = "round_tf32.json"  # benchmarks/gpu/round.py with --precision tf32
NAMES = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD", "fedsmoo": "FedSMOO"}


def read(name: str) -> Any:
    return json.loads((GPU / name).read_text())


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "|".join(["---", *["---:"] * (len(header) - 1)]) + "|"]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def made(result: dict[str, Any]) -> str:
    return f"{result['hardware']}, torch {result['versions']['torch']}, commit {result['commit'][:10] or 'unknown'}"


def headline() -> str:
    """Ours beside the authors' code, timed on the same GPU by ``benchmarks/gpu/authors.py``.

    Their code multiplies in tf32; ours in bf16 and, like with like, in tf32.
    """
    results, alike, theirs = read("round.json"), read(TF32), read("authors.json")
    beside = {r["algorithm"]: r["seconds_per_round"] for r in theirs["results"]}
    tf32 = {r["algorithm"]: r["seconds_per_round"] for r in alike}
    printed, rows = published()["seconds_per_round"], []
    for r in results:
        name, ours, other = (
            NAMES[r["algorithm"]],
            (r["seconds_per_round"], tf32[r["algorithm"]]),
            beside.get(r["algorithm"]),
        )
        faster = [f"{other / mine:.0f}x" if other else "" for mine in ours]
        times = [*(f"{mine:.3f} s" for mine in ours), f"{other:.1f} s" if other else ""]
        rows.append([name, *times, *faster, f"{printed[name]:.2f} s", f"{r['peak_memory_gb']:.1f} GB"])
    if {theirs["hardware"], alike[0]["hardware"]} != {results[0]["hardware"]}:
        sys.exit("results/gpu: authors.json, round.json and round_tf32.json are of different GPUs")
    rounds, revision = len(results[0]["seconds_per_round_all"]), theirs["revision"][:7]
    note = (
        f"Training alone; median of {rounds} rounds; {made(results[0])} (in tf32: commit {alike[0]['commit'][:10]}). "
        f"The authors' code (revision {revision}, tf32 as it sets) ran a round on the same GPU after one to start: at "
        "equal precision the ratio is that of tf32. The paper's numbers are of one A100, evaluation included."
    )
    header = ["method", "a round, bf16", "tf32", "the authors' code, tf32", "bf16 faster", "tf32 faster"]
    return table([*header, "printed in the paper", "peak memory"], rows) + f"\n\n{note}"


def gigaflops(clients: int = 10, batch: int = 50) -> float:
    """Products of one gradient without the stem: each convolution forward, for its input and for its weights."""
    inner = [c for name, c in CONVS.items() if name != STEM.name]
    return 3 * sum(2 * clients * batch * c.side_out**2 * c.taps**2 * c.inside * c.outside for c in inner) / 1e9


def steps_plainly(name: str) -> bool:
    """Whether a method's clients make FedAvg's local steps."""
    method = algorithm_class(name)
    return all(getattr(method, part) is getattr(Algorithm, part) for part in ("direction", "slope", "pull"))


def rounds() -> str:
    """All methods, each beside the plainest one with as many gradients a step."""
    results = {r["algorithm"]: r for r in [*read("round.json"), *read("methods.json")]}
    gradients = {name: gradients_of_a_step(make_algorithm(name, {})) for name in results}
    plain = [r["seconds_per_round"] for name, r in results.items() if steps_plainly(name)]
    plainest = {1: statistics.median(plain), 2: results["fedsam"]["seconds_per_round"]}
    rows = []
    for name in sorted(results, key=lambda n: (gradients[n], results[n]["seconds_per_round"])):
        r = results[name]
        more = f"{round(100 * (r['seconds_per_round'] / plainest[gradients[name]] - 1)):+d}%"
        label = algorithm_class(name).__name__
        rows.append(
            [label, str(gradients[name]), f"{r['seconds_per_round']:.4f}", more, f"{r['seconds_evaluation']:.4f}"]
        )
    header = ["method", "gradients a step", "training, s", "against the plain step", "evaluation of 10,000 images, s"]
    first, empty = read("round.json"), read("round-a92f02ca.json")[0]
    counts = [len(read(f)[0]["seconds_per_round_all"]) for f in ("round.json", "methods.json")]
    again = max(r["seconds_to_first_round"] for f in ("methods.json", "cohorts.json", "seeds.json") for r in read(f))
    note = (
        f"Medians of {counts[0]} rounds (FedAvg, SCAFFOLD, FedSMOO) or {counts[1]}. The plain step is that of the "
        f"{len(plain)} methods whose clients make FedAvg's steps ({min(plain):.4f} to {max(plain):.4f} s, which also "
        "shows how far times scatter), and with two gradients FedSAM's. From an empty cache, start to "
        f"the end of the first round took {empty['seconds_to_first_round']:.0f} s at {empty['commit'][:10]}; in later "
        f"processes, which find compiled code on disk, at most {again:.0f} s; for another method in the same process "
        f"{first[-1]['seconds_to_first_round']:.1f} s. Peak memory at most "
        f"{max(r['peak_memory_gb'] for r in first):.1f} GB (FedSMOO, 100 clients). Evaluations were not captured at "
        f"this commit, by mistake, mended since; captured, one took {empty['seconds_evaluation']:.4f} s at "
        f"{empty['commit'][:10]}. "
    )
    return table(header, rows) + f"\n\n{note}{made(first[0])}."


def precision() -> str:
    kernels = read("kernels_precisions.json")
    results = [ROOT / "results", ROOT / "results" / "precision"]
    paths = [p for place in results for p in sorted(place.glob("fedsmoo-cifar10-dirichlet-0.1-10of100*"))]
    runs = [json.loads(p.read_text()) for p in paths]
    rows = []
    for name in ("bf16", "tf32", "fp32"):
        check = kernels["accuracy"][name]
        timing = next(t for t in kernels["scaling"] if t["precision"] == name and t["clients"] == 10 and t["overlap"])
        mine = [r for r in runs if r["config"]["precision"] == name]
        curves = [[100 * a for a in r["curve"]["test_accuracy"]] for r in mine]
        each = lambda f, curves=curves: ", ".join(f"{f(c):.2f}" for c in curves)  # noqa: E731
        rows.append([
            "fp32 (three tf32 products)" if name == "fp32" else name, f"{check['relative_error']:.1e}",
            f"{timing['gradient_ms']:.2f}", ", ".join(str(r["config"]["seed"]) for r in mine),
            each(lambda c: statistics.fmean(c[-10:])), each(max),
        ])  # fmt: skip
    note = (
        "Relative error of a gradient against float64 at the initial weights. FedSMOO, CIFAR-10, Dirichlet 0.1, 800 "
        "rounds: mean of the last ten and best round (the maximum over the test set) in per cent, a number per seed; "
        "the seed also draws the split. tf32 was run with one seed, which has no spread: whether it differs from "
        "bf16 is not known."
    )
    header = ["products", "relative error", "gradient of 10 clients, ms", "seeds", "mean of last ten", "best round"]
    return table(header, rows) + f"\n\n{note}"


def scaling() -> str:
    def cohort(r: dict[str, Any]) -> int:
        return r["settings"]["cohort"]

    rows = [["FedAvg", str(r["settings"]["cohort"]), "1", f"{r['seconds_per_round']:.3f}",
             f"{1000 * r['seconds_per_round'] / r['settings']['cohort']:.2f}", f"{r['peak_memory_gb']:.1f}"]
            for r in sorted([read("round.json")[0], *read("cohorts.json")], key=cohort)]  # fmt: skip
    smoo = next(r for r in read("round.json") if r["algorithm"] == "fedsmoo")
    rows += [["FedSMOO", str(r["settings"]["cohort"]), str(r["settings"]["seeds"]), f"{r['seconds_per_round']:.3f}",
              f"{1000 * r['seconds_per_round'] / r['settings']['cohort'] / r['settings']['seeds']:.2f}",
              f"{r['peak_memory_gb']:.1f}"] for r in [smoo, *read("seeds.json")]]  # fmt: skip
    header = ["method", "clients a round", "seeds in the batch", "round, s", "ms a client", "peak GB"]
    others = [r for r in read("cohorts.json") if r["commit"] != smoo["commit"]]
    but = "".join(f" ({r['settings']['cohort']} clients: {r['commit'][:10]})" for r in others)
    new = "" if read("seeds.json")[0]["settings"]["everybody_met"] else (
        "In these rounds the four seeds of FedSMOO meet new clients, whose rows are allocated then; the single run has "
        "met all of them. "
    )  # fmt: skip
    return table(header, rows) + f"\n\n{new}{made(smoo)}{but}."


def tiers() -> str:
    rows = []
    device = read("tier_device.json")[0]["seconds_per_round"]
    for name in ("device", "host"):
        r = read(f"tier_{name}.json")[0]
        slower = f"{100 * (r['seconds_per_round'] / device - 1):+.1f}%"
        rows.append([name, f"{r['seconds_per_round']:.4f}", slower, f"{r['peak_memory_gb']:.1f}"])
    note = f"FedSMOO, 1,000 clients, all of them met before. {made(read('tier_host.json')[0])}."
    return table(["tier", "round, s", "slower", "peak GPU GB"], rows) + f"\n\n{note}"


# What a kernel's name begins with, and what it does.
GROUPS = {
    "conv_forward": "convolutions, forward", "conv_backward": "convolutions, data gradient",
    "conv_weight": "convolutions, weight gradient", "stem": "stem, forward and weight gradient", "pool": "pooling",
    "norm_backward": "norms, backward", "head": "last layer", "sum_": "sums of split reductions",
    "triton_": "batch: gather and augment", "vector_pass": "the method", "fold": "the method",
}  # fmt: skip


def kernels() -> str:
    """A local step of FedAvg and FedSMOO by what its kernels do, from a profile of a round."""
    results = {r["algorithm"]: r for r in read("round.json")}
    steps = results["fedavg"]["settings"]["local_epochs"] * 10
    sums: dict[str, dict[str, list[float]]] = {}
    for method in ("fedavg", "fedsmoo"):
        for name, entry in results[method]["kernels_per_step"].items():
            group = next(
                (g for start, g in GROUPS.items() if name.startswith(start)), "copies, fills and the server's step"
            )
            mine = sums.setdefault(group, {}).setdefault(method, [0.0, 0.0])
            mine[0], mine[1] = mine[0] + entry["us"], mine[1] + entry["launches"]
    rows = [
        [group, *(f"{both[m][i]:.0f}" for m in ("fedavg", "fedsmoo") for i in (0, 1))]
        for group, both in sorted(sums.items(), key=lambda item: -item[1]["fedsmoo"][0])
    ]
    walls = [1e6 * results[m]["seconds_per_round"] / steps for m in ("fedavg", "fedsmoo")]
    totals = [sum(both[m][0] for both in sums.values()) for m in ("fedavg", "fedsmoo")]
    rows.append(["sum", f"{totals[0]:.0f}", "", f"{totals[1]:.0f}", ""])
    rows.append(["a step by the clock", f"{walls[0]:.0f}", "", f"{walls[1]:.0f}", ""])
    work = gigaflops()
    convolutions = sum(sums[g]["fedavg"][0] for g in sums if g.startswith("convolutions"))
    note = (
        "10 clients, batch 50, bf16. Sums exceed the clock because weight gradients run beside the chain of layers, "
        "and the next batch is made beside both; what runs beside something else takes longer. The "
        f"convolutions after the stem have {work:.0f} GFLOP a gradient; at the datasheet's 990 TFLOP/s that would be "
        f"{work / 0.99:.0f} us, and FedAvg's take {convolutions:.0f}: they are small (50 to 3,200 rows a client) and "
        "end in norms, and those of the forward pass are placed early and wait, which counts. "
    )
    return (
        table(["part", "FedAvg, us", "launches", "FedSMOO, us", "launches"], rows)
        + f"\n\n{note}{made(results['fedavg'])}."
    )


def history() -> str:
    def cell(entry: dict[str, Any], key: str, form: str) -> str:
        return format(entry[key], form) if key in entry else ""

    rows = [
        [
            e["version"],
            cell(e, "gradient_ms", ".3f"),
            cell(e, "fedavg_s", ".4f"),
            cell(e, "fedsmoo_s", ".4f"),
            e["note"] + (f"; kernels by boxes {general.WRONG}" if e.get("unawaited") else ""),
        ]
        for e in read("history.json")
    ]
    header = ["version", "gradient, ms", "FedAvg, s", "FedSMOO, s", "note"]
    return table(header, rows) + "\n\n10 clients, bf16: one gradient, and a round of 50 steps."


def cpu() -> str:
    report = json.loads((ROOT / "results" / "cpu.json").read_text())
    ways = ("plain loop", "batched", "vmap", "serial")
    rows = [
        [
            r["model"],
            *(f"{1000 * r['seconds_per_round'][w]:.1f}" for w in ways),
            f"{r['faster_than_plain_loop']['batched']:.1f}x",
        ]
        for r in report["results"]
    ]
    note = f"{report['task']}; {report['hardware']}, torch {report['versions']['torch']}."
    return table(["model", *(f"{w}, ms" for w in ways), "batched against the loop"], rows) + f"\n\n{note}"


BLOCKS = {
    f.__name__: f
    for f in (
        cpu, headline, rounds, precision, scaling, tiers, kernels, history, flatness, landscape, drills, search, best,
        leads,
        *machines.BLOCKS, *columns.BLOCKS,
        campaign, outside, audited, general.modules, general.profile, general.convolutions,
        general.tiles_tf32, general.convolutions_tf32,
        glance.speed, glance.accuracy,
    )
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale: dict[Path, str] = {}
    printed = (ROOT / "results" / "demo.txt").read_text().rstrip()
    demo = f"<!-- demo -->\n```text\n{printed}\n```\n<!-- /demo -->"
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        old = path.read_text()
        new = re.sub(
            r"<!-- gpu:(\w+) -->\n.*?<!-- /gpu -->",
            lambda m: f"<!-- gpu:{m[1]} -->\n{BLOCKS[m[1]]()}\n<!-- /gpu -->", old, flags=re.DOTALL,
        )  # fmt: skip
        new = re.sub(r"<!-- demo -->\n.*?<!-- /demo -->", lambda m: demo, new, flags=re.DOTALL)
        if new != old:
            stale[path] = new
    if args.check and stale:
        sys.exit(f"out of date: {', '.join(path.name for path in stale)}; run python -m benchmarks.documents.tables")
    write_together(stale)


if __name__ == "__main__":
    main()
