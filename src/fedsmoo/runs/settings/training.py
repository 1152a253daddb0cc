"""The numbers of a run: rounds, cohorts, local steps, and what is put around a method."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fedsmoo.core.errors import FedsmooError, Named
from fedsmoo.runs.settings.fields import OWN, around, checked, setting

WIRES = ("exact", "fp16", "int8")
STATISTICS = ("averaged", "local", "recomputed")
SAMPLINGS = ("uniform", "bernoulli", "weighted", "round_robin", "power_of_choice")


@dataclass(frozen=True)
class Training(Named):
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
    eval_every: int = setting(1, "rounds between evaluations on the test part", within="(0, inf)", free=("line",))
    holdout: float = setting(0.0, "share of each client's samples kept for validation", group="data", within="[0, 1)")
    target: float | None = setting(
        None, "test accuracy (0..1) whose first round, bytes and seconds are reported", free=("run", "batch", "line")
    )
    probe: str | None = setting(
        None, "measure every so many rounds, such as hessian:50,sharpness:10,consistency:10", free=("run", "line")
    )

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            object.__setattr__(self, f.name, checked(type(self), f.name, getattr(self, f.name)))
        if self.local_epochs is not None and self.local_steps is not None:
            raise FedsmooError("both local_epochs and local_steps are given: choose one")
        refuse_no_accuracy(self.target)

    @property
    def epochs(self) -> int | None:
        """Local passes in force: 5, as in the paper, if neither they nor steps are given."""
        return (self.local_epochs or 5) if self.local_steps is None else None


def refuse_no_accuracy(target: float | None) -> None:
    """Refuse a target that no accuracy reaches, such as one in per cent."""
    if target is not None and not 0 < target <= 1:
        raise FedsmooError(f"target is {target:g}, but is an accuracy between 0 and 1, such as 0.8")
