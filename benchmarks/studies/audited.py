"""What the deviations of docs/audit.md change on a small problem: each option on against off, the same seeds.

Digits, a small network, five of twenty clients: a problem of seconds, which says whether a deviation matters at all,
not how much on images. Takes minutes on one core.

PYTHONPATH=src python -m benchmarks.studies.audited --out results/audited.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import fedsmoo
from fedsmoo.metrics.average import mean
from fedsmoo.paper.cells import last_ten, spread
from fedsmoo.paper.render import Table, render
from fedsmoo.runs.origin.provenance import code_facts
from fedsmoo.sweeps.paired import paired_difference
from fedsmoo.sweeps.results import collect
from fedsmoo.version import __version__

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "results" / "audited.json"
SEEDS = [0, 1, 2, 3, 4]
SETTINGS: dict[str, Any] = {
    "dataset": "digits", "model": "mlp", "partition": "dirichlet-0.1", "clients": 20, "cohort": 5, "rounds": 100,
    "local_epochs": 3, "batch_size": 20, "lr": 0.1, "engine": "batched", "device": "cpu",
}  # fmt: skip
OTHERS = "experiments/released/others.py:"
FRACTION = 3 * 71 / 20  # of 71 samples a client, K in FL-Simulator; a short batch is a step, too, which makes 12


def own(name: str, **more: Any) -> dict[str, Any]:
    return {"algorithm": OTHERS + name, **more}


# Repository -> what deviates -> the settings of the box and of the released code.
PAIRS: dict[str, dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "FL-Simulator": {
        "FedSMOO: mean of mu_i": ({"algorithm": "fedsmoo"}, {"algorithm": "fedsmoo", "perturbation": "released"}),
        "FedSMOO, clip 1: what the clip leaves out": (
            {"algorithm": "fedsmoo", "clip": 1.0}, {"algorithm": "fedsmoo", "clip": 1.0, "clip_scope": "released"}),
        "FedSpeed: normalised ascent": ({"algorithm": "fedspeed"}, {"algorithm": "fedspeed", "form": "released"}),
        "FedAdam: tau 0.01 for 0.001": ({"algorithm": "fedadam", "tau": 0.001}, {"algorithm": "fedadam", "tau": 0.01}),
        "FedAvg: cohorts of any size": ({"algorithm": "fedavg"}, {"algorithm": "fedavg", "sampling": "bernoulli"}),
        "FedCM: a fractional K": ({"algorithm": "fedcm"}, own("FractionalFedCM", steps=FRACTION)),
    },
    "FL-SAM": {
        "FedDyn: distance not squared": ({"algorithm": "feddyn"}, own("NormFedDyn")),
        "FedSMOO: distance not squared": ({"algorithm": "fedsmoo"}, own("NormFedSMOO")),
        "FedLESAM-D: heads, not squared": ({"algorithm": "fedlesam-d", "rho": 0.1}, own("HeadFedLESAMD", rho=0.1)),
        "FedSMOO: momentum, other decay, no clip": ({"algorithm": "fedsmoo"}, {
            "algorithm": "fedsmoo", "local_optimizer": "momentum", "weight_decay": 1e-5, "clip": float("inf")}),
    },
    "FedWMSAM": {
        "FedWMSAM: the other sign": (
            {"algorithm": "fedwmsam", "rho": 0.1}, {"algorithm": "fedwmsam", "rho": 0.1, "form": "released"}),
        "FedWMSAM: and a number a layer": ({"algorithm": "fedwmsam", "rho": 0.1}, own("NumberedFedWMSAM", rho=0.1)),
    },
    "FedGloSS": {
        "FedGloSS: lam over n again": ({"algorithm": "fedgloss"}, {"algorithm": "fedgloss", "dual": "released"}),
    },
    "FedSWA": {
        "FedSWA: rho 0, twice the rate": ({"algorithm": "fedswa"}, {"algorithm": "fedswa", "rho": 0.0, "lr": 0.2}),
        "FedMoSWA: no falling rate": ({"algorithm": "fedmoswa"}, {"algorithm": "fedmoswa", "rho": 1.0}),
        "FedProx: no gradient of the term": (
            {"algorithm": "fedprox", "mu": 0.1}, {"algorithm": "fedprox", "mu": 0.0}),
        "FedACG: no gradient of the term": ({"algorithm": "fedacg", "mu": 0.1}, {"algorithm": "fedacg", "mu": 0.0}),
    },
    "FedNSAM": {
        "FedNSAM: no memory": ({"algorithm": "fednsam"}, {"algorithm": "fednsam", "form": "released"}),
    },
    "FedLESAM": {
        "FedLESAM: along the server's update": ({"algorithm": "fedlesam", "rho": 0.1}, own("AlongServer", rho=0.1)),
        "FedLESAM: and a number a layer": ({"algorithm": "fedlesam", "rho": 0.1}, own("Numbered", rho=0.1)),
        "FedLESAM-S: correction times 0.1": ({"algorithm": "fedlesam-s", "rho": 0.1}, own("WeakFedLESAMS", rho=0.1)),
    },
}  # fmt: skip


def named(settings: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in settings.items())


def measure() -> dict[str, dict[str, dict[int, float]]]:
    """The mean of the last ten of every settings that some pair has, by seed, from a sweep in a folder of its own."""
    methods = {named(s): s for pairs in PAIRS.values() for both in pairs.values() for s in both}
    with tempfile.TemporaryDirectory() as folder:
        done = fedsmoo.sweep({**SETTINGS, "seed": SEEDS, "methods": methods}, folder, pack=len(SEEDS), note=print)
        assert not done.failed, done.failed
        out: dict[str, dict[int, float]] = {}
        for run in collect([folder]).values():
            out.setdefault(run.facts["label"], {})[run.config.seed] = last_ten(run)
    return {
        repository: {what: dict(zip(("box", "released"), (out[named(s)] for s in both), strict=True))
                     for what, both in pairs.items()}
        for repository, pairs in PAIRS.items()
    }  # fmt: skip


def audited() -> str:
    """The table of docs/audit.md: the last ten by the box and as released, and their difference by seed."""
    kept = json.loads(KEPT.read_text())
    assert kept["seeds"] == SEEDS
    rows, clear = [], 0
    for repository, pairs in kept["found"].items():
        for what, both in pairs.items():
            pair = paired_difference(both["released"], both["box"])
            assert pair is not None
            clear += pair.clear
            said = f"{pair.mean:+.2f} ± {pair.half:.2f}"
            means = [spread([*both[k].values()]) for k in ("box", "released")]
            rows.append([what, repository, *means, f"**{said}**" if pair.clear else said])
    notes = [
        f"Test accuracy (%), mean of the last ten rounds and standard deviation over {len(SEEDS)} seeds; the "
        f"difference with its 95% interval, paired by seed, bold where zero is outside, in {clear} of {len(rows)} "
        "rows. By chance alone one row in twenty would be bold."
    ]
    header = ["method, and what released code does", "repository", "by the box", "as released", "difference"]
    return render([Table("Released code against its box on digits", header, rows, notes)], "markdown")


def gap(what: str) -> float:
    """The mean difference of a row."""
    found = json.loads(KEPT.read_text())["found"]
    both = next(pairs[what] for pairs in found.values() if what in pairs)
    return mean(both["released"].values()) - mean(both["box"].values())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=KEPT, help="where what was found is written")
    found = measure()
    facts = {"fedsmoo": __version__, "torch": torch.__version__, **code_facts()}
    kept = {"settings": SETTINGS, "seeds": SEEDS, **facts, "found": found}
    parser.parse_args().out.write_text(json.dumps(kept, indent=1) + "\n")
    for pairs in found.values():
        for what, both in pairs.items():
            print(what, paired_difference(both["released"], both["box"]))


if __name__ == "__main__":
    main()
