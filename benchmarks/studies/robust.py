"""Which servers withstand which attackers: digits, a fifth of the clients attack. One JSON file of test accuracies.

PYTHONPATH=src python -m benchmarks.studies.robust --jobs 2 --out results/robust.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fedsmoo
from fedsmoo.version import __version__

SERVERS = ("fedavg", "median", "trimmed-mean", "krum", "multi-krum", "rfa", "norm-bounded")
CLIENTS, ATTACKERS = 40, 8
ATTACKS: dict[str, dict[str, Any]] = {
    "off": {}, "sign-flip": {"scale": 4.0}, "scaled": {"scale": 100.0}, "gaussian": {"scale": 30.0}, "label-flip": {},
    "alie": {},
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "model": "mlp", "dataset": "digits", "clients": CLIENTS, "cohort": 20, "partition": "iid", "rounds": 60,
    "local_epochs": 5, "batch_size": 10, "lr": 0.1, "eval_every": 1, "device": "cpu",
}  # fmt: skip
OPTIONS = {"norm-bounded": {"bound": 1.0}}
GUESS = 10.0  # per cent of ten classes


def accuracy(case: tuple[str, str, int]) -> float:
    """Return the mean test accuracy of the last ten rounds, in per cent, of a server, an attack and a seed."""
    server, attack, seed = case
    more = {} if attack == "off" else {"attack": attack, "attack_options": {"attackers": ATTACKERS, **ATTACKS[attack]}}
    method = {"algorithm": server, "algorithm_options": OPTIONS.get(server, {})}
    try:
        run = fedsmoo.run({**SETTINGS, **method, **more, "seed": seed})
    except fedsmoo.FedsmooError as e:
        if "no longer finite" not in str(e):
            raise
        return GUESS  # its weights are not numbers any more
    return 100 * statistics.mean(r.test_accuracy for r in run.history[-10:] if r.test_accuracy is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--commit", default=os.environ.get("FEDSMOO_COMMIT", ""))
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    cases = list(product(SERVERS, ATTACKS, range(given.seeds)))
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        found = dict(zip(cases, pool.map(accuracy, cases), strict=True))
    kept = {s: {a: [round(found[s, a, k], 2) for k in range(given.seeds)] for a in ATTACKS} for s in SERVERS}
    for server, by_attack in kept.items():
        print(server, {a: round(statistics.mean(v), 1) for a, v in by_attack.items()})
    about = {"settings": SETTINGS, "attackers": ATTACKERS, "attacks": ATTACKS, "options": OPTIONS}
    about |= {"fedsmoo": __version__, "commit": given.commit}
    given.out.write_text(json.dumps({**about, "accuracy": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
