"""The FedSMOO authors' simulator: its FedAvg, unmodified, with our network and data in its hands.

Usage: authors_worker.py FOLDER (of a checkout of github.com/woodenchild95/FL-Simulator). Scoring after a round is left
out of the time. Its clients flip and crop images, as ours do in that workload.
"""

from __future__ import annotations

import contextlib
import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.rivals.common import Clock, answer, load_vision, memory_bytes, use_threads, workload

load_vision()


def arguments() -> SimpleNamespace:
    """The workload under the names of their command line."""
    work = workload()
    s = work.settings
    return SimpleNamespace(
        method="FedAvg", dataset="mnist" if s["dataset"] == "digits" else "CIFAR10", total_client=s["clients"],
        active_ratio=s["cohort"] / s["clients"], comm_rounds=work.rounds, local_epochs=s["local_epochs"],
        batchsize=s["batch_size"], weight_decay=s["weight_decay"], local_learning_rate=s["lr"], lr_decay=1.0,
        global_learning_rate=1.0, seed=s["seed"], use_RI=False, beta=0.1, non_iid=False, out_file="out/",
    )  # fmt: skip


def main() -> None:
    use_threads()
    sys.path.insert(0, sys.argv[1])
    import server
    import utils

    work = workload()
    x, y = work.inputs(work.x_train).cpu().numpy(), work.y_train.numpy().reshape(-1, 1)
    held = SimpleNamespace(
        client_x=[x[c] for c in work.clients], client_y=[y[c] for c in work.clients], test_x=x[:1], test_y=y[:1]
    )

    class Timed(server.FedAvg):  # type: ignore[misc,name-defined]
        def _activate_clients_(self, t: int) -> np.ndarray:
            # Theirs tosses a coin for each client: cohorts differ in size, and so does the work.
            chosen = np.random.default_rng((work.settings["seed"], t)).choice(
                len(work.clients), work.settings["cohort"], replace=False
            )
            return np.sort(chosen)

        def _test_(self, t: int, selected: Any) -> None:
            clock.lap()

        def _save_results_(self) -> None: ...

    model = work.module()
    run = Timed(
        device=work.device, model_func=work.module, init_model=model, init_par_list=utils.get_mdl_params(model),
        datasets=held, method="FedAvg", args=arguments(),
    )  # fmt: skip
    clock = Clock()
    with contextlib.redirect_stdout(io.StringIO()):  # their progress
        run.train()
    answer(clock, run.server_model, [], memory_bytes())


if __name__ == "__main__":
    main()
