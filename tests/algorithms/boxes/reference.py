"""Every method by name: ``run`` gives the global models round by round, ``trace`` the whole state.

Hyper-parameters common to all: ``clip`` (None or a norm), ``clip_scope`` ("all", "released"), ``weight_decay``,
``weights`` (client -> weight in the mean), ``relaxed`` (the b of FedInit, None for off), ``lr_server``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .averaging import fedavg, fedopt, fedprox, fedsam
from .drifts import feddc
from .duals import feddyn, fedgloss, fedlesam_d, fedsmoo, fedspeed
from .layers import Hyper, LossGrad, Model, Round
from .lookahead import fedacg, fednsam
from .losses import fedgmt, fedlc, fedntd, moon, qfedavg
from .personal import ditto, fedbn, fedper, fedrep, pfedme
from .servers import fedexp, fednova, robust
from .variates import fedcm, fedgamma, fedlesam, fedlesam_s, fedmoswa, fedswa, fedwmsam, mofedsam, scaffold

Box = Callable[[LossGrad, Model, list[Round], int, Hyper], Iterator[dict[str, Any]]]

BOXES: dict[str, Box] = {
    "FedAvg": fedavg,
    "FedAvgM": partial(fedopt, "momentum"),
    "FedAdam": partial(fedopt, "adam"),
    "FedYogi": partial(fedopt, "yogi"),
    "FedAdagrad": partial(fedopt, "adagrad"),
    "FedProx": fedprox,
    "SCAFFOLD": scaffold,
    "FedCM": fedcm,
    "FedDyn": feddyn,
    "FedSAM": fedsam,
    "MoFedSAM": mofedsam,
    "FedSMOO": fedsmoo,
    "FedSpeed": fedspeed,
    "FedGamma": fedgamma,
    "FedLESAM": fedlesam,
    "FedLESAMS": fedlesam_s,
    "FedLESAMD": fedlesam_d,
    "FedACG": fedacg,
    "FedNSAM": fednsam,
    "FedDC": feddc,
    "PFedMe": pfedme,
    "FedGloSS": fedgloss,
    "FedExP": fedexp,
    "FedNova": fednova,
    "Median": partial(robust, "median"),
    "TrimmedMean": partial(robust, "trimmed"),
    "Krum": partial(robust, "krum"),
    "MultiKrum": partial(robust, "multi_krum"),
    "RFA": partial(robust, "geometric"),
    "NormBounded": partial(robust, "bounded"),
    "FedWMSAM": fedwmsam,
    "FedSWA": fedswa,
    "FedMoSWA": fedmoswa,
    "Ditto": ditto,
    "FedPer": fedper,
    "FedRep": fedrep,
    "FedBN": fedbn,
    "FedLC": fedlc,
    "FedNTD": fedntd,
    "FedGMT": fedgmt,
    "MOON": moon,
    "QFedAvg": qfedavg,
}


def trace(
    method: str, loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, hyper: Hyper
) -> list[dict[str, Any]]:
    """The state after every round, as the box names it: ``w`` and, where the method has them, ``lam``, ``c_i``, ..."""
    return list(BOXES[method](loss_grad, w0, rounds, m, hyper))


def run(method: str, loss_grad: LossGrad, w0: Model, rounds: list[Round], m: int, hyper: Hyper) -> list[Model]:
    """The global model after every round."""
    return [state["w"] for state in trace(method, loss_grad, w0, rounds, m, hyper)]
