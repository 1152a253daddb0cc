"""The methods, one short file per family, each reading like the box in its paper.

``fedavg`` is where to begin. ``around`` is the base of what wraps any method: local optimisers and learning rates,
privacy, compression, attackers, robust servers, running statistics; ``choices`` puts them around one by name.
"""

from __future__ import annotations

from fedsmoo.algorithms.ditto import Ditto
from fedsmoo.algorithms.fedacg import FedACG, FedNSAM
from fedsmoo.algorithms.fedavg import FedAvg, FedProx
from fedsmoo.algorithms.fedbn import FedBN
from fedsmoo.algorithms.fedcm import FedCM
from fedsmoo.algorithms.feddc import FedDC
from fedsmoo.algorithms.feddyn import FedDyn
from fedsmoo.algorithms.fedexp import FedExP
from fedsmoo.algorithms.fedgloss import FedGloSS
from fedsmoo.algorithms.fedgmt import FedGMT
from fedsmoo.algorithms.fedlc import FedLC
from fedsmoo.algorithms.fedlesam import FedLESAM, FedLESAMD, FedLESAMS
from fedsmoo.algorithms.fednova import FedNova
from fedsmoo.algorithms.fedntd import FedNTD
from fedsmoo.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedsmoo.algorithms.fedper import FedPer, FedRep
from fedsmoo.algorithms.fedsmoo import FedSMOO
from fedsmoo.algorithms.fedspeed import FedSpeed
from fedsmoo.algorithms.fedswa import FedMoSWA, FedSWA
from fedsmoo.algorithms.fedwmsam import FedWMSAM
from fedsmoo.algorithms.moon import MOON
from fedsmoo.algorithms.pfedme import PFedMe
from fedsmoo.algorithms.qfedavg import QFedAvg
from fedsmoo.algorithms.relaxed import Relaxed
from fedsmoo.algorithms.robust import RFA, Krum, Median, MultiKrum, NormBounded, TrimmedMean
from fedsmoo.algorithms.sam import FedGamma, FedSAM, MoFedSAM
from fedsmoo.algorithms.scaffold import SCAFFOLD
from fedsmoo.core import Algorithm

# The name on the command line -> the method. The first eight are the paper's comparison, in its order.
ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedadam": FedAdam,
    "scaffold": SCAFFOLD,
    "fedcm": FedCM,
    "feddyn": FedDyn,
    "fedsam": FedSAM,
    "mofedsam": MoFedSAM,
    "fedsmoo": FedSMOO,
    "fedprox": FedProx,
    "fedavgm": FedAvgM,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedspeed": FedSpeed,
    "fedgamma": FedGamma,
    "fedlesam": FedLESAM,
    "fedlesam-s": FedLESAMS,
    "fedlesam-d": FedLESAMD,
    "fedacg": FedACG,
    "fednsam": FedNSAM,
    "feddc": FedDC,
    "pfedme": PFedMe,
    "fedgloss": FedGloSS,
    "fedexp": FedExP,
    "fednova": FedNova,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "rfa": RFA,
    "norm-bounded": NormBounded,
    "fedwmsam": FedWMSAM,
    "fedswa": FedSWA,
    "fedmoswa": FedMoSWA,
    "ditto": Ditto,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedlc": FedLC,
    "fedntd": FedNTD,
    "fedgmt": FedGMT,
    "moon": MOON,
    "qfedavg": QFedAvg,
    "fedbn": FedBN,
}

__all__ = [
    "ALGORITHMS", "MOON", "RFA", "SCAFFOLD", "Ditto", "FedACG", "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedBN",
    "FedCM", "FedDC", "FedDyn", "FedExP", "FedGMT", "FedGamma", "FedGloSS", "FedLC", "FedLESAM", "FedLESAMD",
    "FedLESAMS", "FedMoSWA", "FedNSAM", "FedNTD", "FedNova", "FedPer", "FedProx", "FedRep", "FedSAM", "FedSMOO",
    "FedSWA", "FedSpeed", "FedWMSAM", "FedYogi", "Krum", "Median", "MoFedSAM", "MultiKrum", "NormBounded", "PFedMe",
    "QFedAvg", "Relaxed", "TrimmedMean",
]  # fmt: skip
