"""Every registered method, its option variants, and the wrappers: the list that several suites run over."""

from __future__ import annotations

from kinds import EACH_KIND

from fedsmoo.algorithms import ALGORITHMS, SCAFFOLD, FedSMOO, FedSpeed, Relaxed
from fedsmoo.algorithms.quantised import Quantised
from fedsmoo.core import Algorithm

METHODS: dict[str, Algorithm] = {name: cls() for name, cls in ALGORITHMS.items()}

VARIANTS: dict[str, Algorithm] = {
    "fedsmoo-released": FedSMOO(perturbation="released"),
    "fedsmoo-regulariser": FedSMOO(sam=False),
    "fedsmoo-regulariser-sam": FedSMOO(correct=False),
    "fedsmoo-agreed-sam": FedSMOO(regularise=False),
    "fedsmoo-sam": FedSMOO(regularise=False, correct=False),
    "fedsmoo-off": FedSMOO(regularise=False, sam=False),
    "fedspeed-released": FedSpeed(form="released"),
    "fedspeed-mixed": FedSpeed(alpha=0.6),
}

# A wrapper sees what a method calls its start, what it keeps and what it sends: one of each kind, and of each start.
STARTS = ("feddyn", "fedlesam-s", "fedacg", "pfedme")
INSIDE = {name: METHODS[name] for name in (*EACH_KIND, *STARTS) if name in METHODS}
RELAXED: dict[str, Algorithm] = {f"relaxed-{name}": Relaxed(algorithm, 0.3) for name, algorithm in INSIDE.items()}

WIRED: dict[str, Algorithm] = {
    "quantised-fp16": Quantised(FedSMOO(), "fp16"),
    "quantised-int8": Quantised(SCAFFOLD(), "int8"),
    "quantised-relaxed": Quantised(Relaxed(FedSMOO()), "int8"),
}

EVERYTHING = METHODS | VARIANTS | RELAXED | WIRED

# Larger radii and penalties than the defaults, so that each term weighs enough for an error in it to show.
STRONG: dict[str, Algorithm] = {
    name: type(a)(**{k: {"rho": 0.2, "r": 0.2, "beta": 2.0, "mu": 0.5}.get(k, v) for k, v in a.options().items()})
    for name, a in (METHODS | VARIANTS).items()
}

# These differ from FedAvg, or from the median, at the server alone.
SAME_STEPS = {
    "fedadam",
    "fedavgm",
    "fedyogi",
    "fedadagrad",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "rfa",
    "norm-bounded",
}
