"""The small runs that every number of ranks repeats: all kinds of methods; cohorts leave some ranks without work."""

from __future__ import annotations

from pathlib import Path

import torch
from kinds import EACH_KIND, settings_of

from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.record import HELD_OUT

FEDNOVA = f"{Path(__file__).parents[2] / 'fednova.py'}:FedNova"
# Bernoulli cohorts of about three out of seven: unequal shares, ranks with nobody, one empty round.
SMALL = Config(
    dataset="digits", model="softmax", clients=7, cohort=3, rounds=4, local_epochs=1, batch_size=100, lr=0.05,
    sampling="bernoulli", partition="dirichlet", u=0.3, weighted=True, dtype="float64", device="cpu", seed=163,
)  # fmt: skip

KINDS = Path(__file__).parents[2] / "kinds.py"
TOLD = Path(__file__).parents[1] / "told.py"
DROPOUT = f"{Path(__file__).with_name('nets.py')}:dropout"
NORMED = f"{Path(__file__).parents[1] / 'statistics' / 'nets.py'}:normed"

# What imports a library, or a user's file that is checked when it is first used.
BY_FILE: dict[str, Config] = {
    "single numbers": SMALL.replace(algorithm=FEDNOVA, engine="batched"),
    "numbers kept": SMALL.replace(algorithm=f"{KINDS}:Numbers", engine="batched"),
    "rows": SMALL.replace(algorithm=f"{KINDS}:Median", engine="batched"),
    "parts": SMALL.replace(algorithm=f"{KINDS}:Heads", algorithm_options={"head": "*bias"}, engine="batched"),
    "personal": SMALL.replace(algorithm=f"{KINDS}:Ditto", engine="batched", holdout=0.2),
    "noise of its own": SMALL.replace(algorithm=f"{TOLD}:Noisy", engine="batched"),
    "metrics": SMALL.replace(algorithm="fedavg", metrics="f1,accuracy,auc,perplexity", engine="batched", holdout=0.2),
}

CASES: dict[str, Config] = {
    **BY_FILE,
    **{kind: SMALL.replace(**settings_of(kind), engine="batched") for kind in EACH_KIND},
    **{f"{kind}, exact": SMALL.replace(**settings_of(kind), exact=True, dtype="float32") for kind in EACH_KIND},
    "vmap": SMALL.replace(algorithm="fedsmoo", engine="vmap"),
    "holdout": SMALL.replace(algorithm="fedsmoo", holdout=0.2, engine="batched"),
    "single numbers, exact": SMALL.replace(algorithm=FEDNOVA, exact=True, dtype="float32"),
    "numbers kept, exact": SMALL.replace(algorithm=f"{KINDS}:Numbers", exact=True, dtype="float32"),
    "rows, exact": SMALL.replace(algorithm=f"{KINDS}:Median", exact=True, dtype="float32"),
    "noise of its own, exact": SMALL.replace(algorithm=f"{TOLD}:Noisy", exact=True, dtype="float32"),
    "statistics": SMALL.replace(algorithm="fedsmoo", model=NORMED, engine="vmap", batch_size=20),
    "statistics, exact": SMALL.replace(algorithm="fedavg", model=NORMED, exact=True, dtype="float32", batch_size=20),
    "statistics kept": SMALL.replace(algorithm="fedbn", model=NORMED, engine="vmap", batch_size=21, holdout=0.2),
    "auto": SMALL.replace(algorithm="scaffold", engine="auto"),
    "dropout": SMALL.replace(algorithm="fedsmoo", model=DROPOUT, engine="auto"),
    "dropout, exact": SMALL.replace(algorithm="fedsmoo", model=DROPOUT, exact=True, dtype="float32"),
}

# Three ranks carry out all of them. Two differ in who holds what alone: one of each way in which ranks come together.
IN_TWO = (
    "fedsmoo", "fedsmoo, exact", "median", "fedlc, exact", "vmap", "holdout", "single numbers", "numbers kept, exact",
    "metrics", "personal", "noise of its own", "statistics", "statistics kept", "auto", "dropout, exact",
)  # fmt: skip
CASES_OF: dict[int, dict[str, Config]] = {2: {name: CASES[name] for name in IN_TWO}, 3: CASES}


def outcome(config: Config) -> dict:
    """Everything that a run ends with: vectors of the server and of all clients, losses, drifts, accuracies."""
    result = assemble(config).run()
    return {
        "server": dict(result.server.items()),
        "clients": dict(result.simulation.engine.table.items()),
        "history": [
            (
                r.train_loss,
                r.drift,
                r.drift_after,
                r.test_accuracy,
                r.test_loss,
                *(getattr(r, n) for n in HELD_OUT),
                r.cohort,
            )
            for r in result.history
        ],
        "metrics": [r.metrics for r in result.history],
        "engine": result.simulation.engine.name,
        "ranks": getattr(result.simulation.engine, "ranks", None) and result.simulation.engine.ranks.world,
    }


def save_all(path: str, world: int) -> None:
    torch.save({name: outcome(config) for name, config in CASES_OF[world].items()}, path)
