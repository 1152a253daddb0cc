"""Federated optimisation, written once and run everywhere."""

from fedsmoo.algorithms import (
    ALGORITHMS,
    SCAFFOLD,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedCM,
    FedDyn,
    FedGamma,
    FedLESAM,
    FedLESAMD,
    FedLESAMS,
    FedProx,
    FedSAM,
    FedSMOO,
    FedSpeed,
    FedYogi,
    MoFedSAM,
    Relaxed,
)
from fedsmoo.api import simulate
from fedsmoo.core import Algorithm, FedsmooError, Round, Vectors, norm, unit
from fedsmoo.core.algorithm import option
from fedsmoo.data.partition import IID, Dirichlet, Pathological
from fedsmoo.experiment.config import Config
from fedsmoo.experiment.loop import Record, Result
from fedsmoo.version import __version__

__all__ = [
    "ALGORITHMS",
    "IID",
    "SCAFFOLD",
    "Algorithm",
    "Config",
    "Dirichlet",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedCM",
    "FedDyn",
    "FedGamma",
    "FedLESAM",
    "FedLESAMD",
    "FedLESAMS",
    "FedProx",
    "FedSAM",
    "FedSMOO",
    "FedSpeed",
    "FedYogi",
    "FedsmooError",
    "MoFedSAM",
    "Pathological",
    "Record",
    "Relaxed",
    "Result",
    "Round",
    "Vectors",
    "__version__",
    "norm",
    "option",
    "simulate",
    "unit",
]
