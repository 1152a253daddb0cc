"""The numbers of a run: rounds, cohorts, local steps, and what is put around a method."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from fedsmoo.core.errors import ChecksArguments, FedsmooError, brief
from fedsmoo.metrics.quantity import quantity
from fedsmoo.runs.settings.fields import OWN, around, checked_setting, setting

WIRES = ("exact", "fp16", "int8")
STATISTICS = ("averaged", "local", "recomputed")
SAMPLINGS = ("uniform", "bernoulli", "weighted", "round_robin", "power_of_choice")


@dataclass(frozen=True)
class Training(ChecksArguments):
    """The numbers of a run; what it trains, and on what, are objects beside it."""

    rounds: int = setting(100, "communication rounds", within="(0, inf)")
    cohort: int = setting(10, "clients in a round (n)", within="(0, inf)")
    sampling: str = setting("uniform", f"how a cohort is drawn: a name, or {OWN}:function", SAMPLINGS)
    local_epochs: int | None = setting(None, "passes over a client's samples in a round (default 5)", within="(0, inf)")
    local_steps: int | None = setting(None, "local steps in a round, instead of local_epochs", within="(0, inf)")
    batch_size: int = setting(50, "samples in a minibatch", within="(0, inf)")
    lr: float = setting(0.1, "local learning rate", within="(0, inf)", free=("batch",))
    lr_decay: float = setting(
        0.998, "factor of the local learning rate after every round", within="(0, 1]", free=("batch",)
    )
    weight_decay: float = setting(1e-3, "weight decay of a local step", within="[0, inf)", free=("batch",))
    clip: float | None = setting(10.0, "norm at which a local direction is clipped; none: never", within="(0, inf]")
    clip_scope: str = setting("all", "released: add the proximal term after the clip", ("all", "released"))
    local_optimizer: str = around("what a client makes of its directions", "sgd momentum nesterov adam adamw")
    local_schedule: str = around("learning rate within a round", "constant linear cosine cyclic")
    privacy: str = around("what hides a client: bounded changes and noise", "off client")
    compression: str = around("what clients send of their vectors", "off topk randomk qsgd sign")
    attack: str = around("what attackers among the clients do", "off sign-flip scaled gaussian label-flip alie")
    weighted: bool = setting(False, "weight the mean by the clients' sample counts")
    relaxed: float = setting(
        0.0, "relaxed initialisation (FedInit) of any method; 0: off", within="[0, inf)", free=("batch",)
    )
    wire: str = setting("exact", "numbers that travel: exact, or rounded with error feedback", choices=WIRES)
    statistics: str = setting(
        "averaged", "running statistics of a model (BatchNorm): whose they are", choices=STATISTICS, quiet=True
    )
    augment: bool | None = setting(None, "random flips and crops (default: where the data set's images allow)")
    seed: int = setting(0, "seed of all random streams", within="[0, inf)", free=("batch", "line"))
    eval_every: int = setting(1, "rounds between evaluations on the test part", within="(0, inf)")
    metrics: str | None = setting(
        None,
        f"what is measured, with commas between: names, {OWN}:function (-{OWN}:function: less is better); the first "
        "leads (default: accuracy, or by the targets)",
        quiet=True,
    )
    holdout: float = setting(0.0, "share of each client's samples kept for validation", group="data", within="[0, 1)")
    target: float | None = setting(
        None,
        "test accuracy (0..1), or value of the metric that leads, whose first round, bytes and seconds are reported",
        free=("run", "batch", "line"),
    )
    probe: str | None = setting(
        None, "measure every so many rounds, such as hessian:50,sharpness:10,consistency:10", free=("run", "line")
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", metrics_as_text(self.metrics))
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, checked_setting(type(self), f.name, getattr(self, f.name)))
        if self.local_epochs is not None and self.local_steps is not None:
            raise FedsmooError("both local_epochs and local_steps are given: choose one")
        if self.metrics is not None:  # else the data say what leads
            quantity(self.metrics.split(",")[0]).refuse_target(self.target)

    @property
    def epochs(self) -> int | None:
        """Local passes in force: 5, as in the paper, if neither they nor steps are given."""
        return (self.local_epochs or 5) if self.local_steps is None else None


def metrics_as_text(given: Any) -> Any:
    """Return a list of metrics, as TOML files and programs have it, as the text that stands for it."""
    if not isinstance(given, list | tuple):
        return given
    if not given or not all(isinstance(name, str) for name in given):
        raise FedsmooError(f"metrics is {brief(given)}, but must be names, such as ['accuracy', 'f1']")
    return ",".join(name.strip() for name in given)
