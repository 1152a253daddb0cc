"""Optuna over packed sweeps: it suggests several trials at a time, which advance in one batch, as one run would.

    pip install optuna
    python examples/optuna_packed.py

Trials are judged on samples that nobody trains on (``holdout``), never on the test part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna

import fedsmoo

TASK = {"dataset": "digits", "model": "mlp", "clients": 20, "cohort": 5, "rounds": 30, "holdout": 0.2}


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    """What a trial is: settings and hyper-parameters that are plain numbers, so that trials share a batch."""
    return {
        "algorithm": "fedsmoo",
        "lr": trial.suggest_float("lr", 0.01, 0.5, log=True),
        "r": trial.suggest_float("r", 0.01, 0.5, log=True),
    }


def search(out: Path, batches: int = 4, pack: int = 4, **task: Any) -> optuna.Study:
    """Search in batches of ``pack`` trials; the runs are in ``out``, where ``fedsmoo runs`` and ``report`` see them."""
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True))
    for _ in range(batches):
        trials = [study.ask() for _ in range(pack)]
        methods = {f"trial {trial.number}": suggest(trial) for trial in trials}
        scores: dict[tuple[float, float], float] = {}

        def finished(config: fedsmoo.Config, folder: Path, summary: dict[str, Any], scores: Any = scores) -> None:
            scores[config.lr, config.algorithm_options["r"]] = summary["validation_accuracy"]

        fedsmoo.sweep({**TASK, **task, "methods": methods}, out, pack=pack, finished=finished)
        for trial in trials:  # one that failed has no score
            score = scores.get((trial.params["lr"], trial.params["r"]))
            study.tell(trial, score, state=None if score is not None else optuna.trial.TrialState.FAIL)
    return study


def main() -> None:
    """Search, and print the best trial."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = search(Path("runs/optuna"))
    print(f"best of {len(study.trials)} trials: {study.best_value:.2%} on samples held out, {study.best_params}")


if __name__ == "__main__":
    main()
