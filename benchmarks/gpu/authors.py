"""Seconds of a round of the FedSMOO authors' released simulator, training alone, beside ours on the same machine.

Their code is not part of this project: give the folder of a checkout (github.com/woodenchild95/FL-Simulator). Images
are noise, since what they show does not change the time; cohorts are ten clients of 500 images exactly; their scoring
of 60,000 images after every round is left out of the time. Ours is read from a file that ``round.py`` wrote.

PYTHONPATH=src python3 -m benchmarks.gpu.authors --code FL-Simulator --ours round.json --out authors.json
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import platform
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from fedsmoo.runs.origin.provenance import code_facts
from fedsmoo.runs.simulation import synchronize

# The paper's CIFAR-10 settings under the names of their command line, whose defaults fill the rest.
SETTINGS = {
    "dataset": "CIFAR10", "model": "ResNet18", "non_iid": True, "split_rule": "Dirichlet", "split_coef": 0.1,
    "local_epochs": 5, "batchsize": 50, "weight_decay": 1e-3, "local_learning_rate": 0.1, "global_learning_rate": 1.0,
    "lr_decay": 0.998, "seed": 20, "cuda": 0, "out_file": "out/", "save_model": False, "use_RI": False, "alpha": 0.1,
    "beta": 0.1, "beta1": 0.9, "beta2": 0.99, "lamb": 0.1, "rho": 0.1, "gamma": 1.0, "epsilon": 0.01,
}  # fmt: skip


def noise(clients: int, samples: int) -> SimpleNamespace:
    """What their data object holds: normalised images and labels of every client."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((clients, samples, 3, 32, 32), dtype=np.float32)
    y = rng.integers(10, size=(clients, samples, 1))
    return SimpleNamespace(client_x=list(x), client_y=list(y), test_x=x[0], test_y=y[0])


def measure(method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each round of one of their methods, the first one apart: it starts the libraries."""
    import models
    import server
    import utils

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clients, cohort = options.clients, options.cohort
    args = SimpleNamespace(
        **SETTINGS, method=method, total_client=clients, active_ratio=cohort / clients, comm_rounds=options.rounds + 1
    )

    class Timed(getattr(server, method)):  # type: ignore[misc]
        def _activate_clients_(self, t: int) -> np.ndarray:
            synchronize(device)
            self.began = time.perf_counter()
            return np.sort(np.random.default_rng(t).choice(clients, cohort, replace=False))

        def _test_(self, t: int, selected: np.ndarray) -> None:
            synchronize(device)
            spent.append(time.perf_counter() - self.began)
            print(f"{method} round {t + 1}: {spent[-1]:.2f} s", file=sys.stderr, flush=True)

        def _save_results_(self) -> None: ...

    spent: list[float] = []
    model = models.client_model(args.model, 10)
    run = Timed(
        device=device, model_func=lambda: models.client_model(args.model, 10), init_model=model,
        init_par_list=utils.get_mdl_params(model), datasets=noise(clients, options.samples), method=method, args=args,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):  # their progress
        run.train()
    return {
        "algorithm": method.lower(), "seconds_per_round": statistics.median(spent[1:]),
        "seconds_per_round_all": spent[1:], "seconds_first_round": spent[0],
        "settings": {"clients": clients, "cohort": cohort, "samples_per_client": options.samples, **SETTINGS},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--code", type=Path, required=True, help="folder of their checkout")
    parser.add_argument("--ours", type=Path, help="what benchmarks/gpu/round.py wrote here, for the ratio")
    parser.add_argument("--methods", default="FedAvg,FedSMOO")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=2, help="timed, after one to start")
    parser.add_argument("--revision", default="", help="of their code")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not (options.code / "server").is_dir():
        sys.exit(f"{options.code} is no checkout of the authors' simulator: there is no folder 'server' in it")
    sys.path.insert(0, str(options.code.resolve()))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as their train.py does
    torch.backends.cudnn.deterministic = True
    ours = {r["algorithm"]: r for r in json.loads(options.ours.read_text())} if options.ours else {}
    result: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
        "versions": {"torch": torch.__version__}, "revision": options.revision, "results": [], **code_facts(),
    }  # fmt: skip
    for method in options.methods.split(","):
        found = measure(method, options)
        if ours.get(found["algorithm"], {}).get("hardware") == result["hardware"]:
            mine = ours[found["algorithm"]]["seconds_per_round"]
            found |= {"ours_seconds_per_round": mine, "times_faster": found["seconds_per_round"] / mine}
        result["results"].append(found)
        options.out.write_text(json.dumps(result, indent=1))
        print({k: v for k, v in found.items() if k != "settings"}, flush=True)


if __name__ == "__main__":
    main()
