"""Federated optimisation, written once and run everywhere."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedsmoo.lazy import names_from
from fedsmoo.version import __version__

if TYPE_CHECKING:
    from fedsmoo.algorithms import (
        ALGORITHMS,
        MOON,
        RFA,
        SCAFFOLD,
        Ditto,
        FedACG,
        FedAdagrad,
        FedAdam,
        FedAvg,
        FedAvgM,
        FedBN,
        FedCM,
        FedDC,
        FedDyn,
        FedExP,
        FedGamma,
        FedGloSS,
        FedGMT,
        FedLC,
        FedLESAM,
        FedLESAMD,
        FedLESAMS,
        FedMoSWA,
        FedNova,
        FedNSAM,
        FedNTD,
        FedPer,
        FedProx,
        FedRep,
        FedSAM,
        FedSMOO,
        FedSpeed,
        FedSWA,
        FedWMSAM,
        FedYogi,
        Krum,
        Median,
        MoFedSAM,
        MultiKrum,
        NormBounded,
        PFedMe,
        QFedAvg,
        Relaxed,
        TrimmedMean,
    )
    from fedsmoo.algorithms.around import Around
    from fedsmoo.api import load, simulate
    from fedsmoo.comparing import compare
    from fedsmoo.core import Algorithm, FedsmooError, Round, Schedule, Vectors, derived, norm, option, stream, unit
    from fedsmoo.data.dataset import Dataset
    from fedsmoo.data.division.inputs import Noise, Rotation
    from fedsmoo.data.division.partition import IID, Dirichlet, Pathological
    from fedsmoo.data.division.shares import ClassWise, Quantity, Shards, Sizes
    from fedsmoo.data.forms import read_data
    from fedsmoo.pages.report import report
    from fedsmoo.runs.analyse import analyse
    from fedsmoo.runs.config import Config
    from fedsmoo.runs.record import Record
    from fedsmoo.runs.results.curves import plot
    from fedsmoo.runs.results.result import Result
    from fedsmoo.runs.resume import resume
    from fedsmoo.runs.run import run
    from fedsmoo.runs.watch.state import RoundState
    from fedsmoo.sweeps.sweep import sweep

__all__ = [
    "ALGORITHMS", "IID", "MOON", "RFA", "SCAFFOLD", "Algorithm", "Around", "ClassWise", "Config", "Dataset",
    "Dirichlet", "Ditto", "FedACG", "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedBN", "FedCM", "FedDC", "FedDyn",
    "FedExP", "FedGMT", "FedGamma", "FedGloSS", "FedLC", "FedLESAM", "FedLESAMD", "FedLESAMS", "FedMoSWA", "FedNSAM",
    "FedNTD", "FedNova", "FedPer", "FedProx", "FedRep", "FedSAM", "FedSMOO", "FedSWA", "FedSpeed", "FedWMSAM",
    "FedYogi", "FedsmooError", "Krum", "Median", "MoFedSAM", "MultiKrum", "Noise", "NormBounded", "PFedMe",
    "Pathological", "QFedAvg", "Quantity", "Record", "Relaxed", "Result", "Rotation", "Round", "RoundState",
    "Schedule", "Shards", "Sizes", "TrimmedMean", "Vectors", "__version__", "analyse", "compare", "derived", "load",
    "norm", "option", "plot", "read_data", "report", "resume", "run", "simulate", "stream", "sweep", "unit",
]  # fmt: skip

# Where each name is found. Names are imported when first used: PyTorch takes seconds, and the program must be able to
# say what Ctrl-C does before that.
_HOMES = {
    "algorithms": (
        "ALGORITHMS", "MOON", "RFA", "SCAFFOLD", "Ditto", "FedACG", "FedAdagrad", "FedAdam", "FedAvg", "FedAvgM",
        "FedBN", "FedCM", "FedDC", "FedDyn", "FedExP", "FedGMT", "FedGamma", "FedGloSS", "FedLC", "FedLESAM",
        "FedLESAMD", "FedLESAMS", "FedMoSWA", "FedNSAM", "FedNTD", "FedNova", "FedPer", "FedProx", "FedRep", "FedSAM",
        "FedSMOO", "FedSWA", "FedSpeed", "FedWMSAM", "FedYogi", "Krum", "Median", "MoFedSAM", "MultiKrum",
        "NormBounded", "PFedMe", "QFedAvg", "Relaxed", "TrimmedMean",
    ),
    "algorithms.around": ("Around",),
    "api": ("load", "simulate"),
    "comparing": ("compare",),
    "core": (
        "Algorithm", "FedsmooError", "Round", "Schedule", "Vectors", "derived", "norm", "option", "stream", "unit",
    ),
    "data.dataset": ("Dataset",),
    "data.forms": ("read_data",),
    "data.division.inputs": ("Noise", "Rotation"),
    "data.division.partition": ("IID", "Dirichlet", "Pathological"),
    "data.division.shares": ("ClassWise", "Quantity", "Shards", "Sizes"),
    "pages.report": ("report",),
    "runs.analyse": ("analyse",),
    "runs.config": ("Config",),
    "runs.record": ("Record",),
    "runs.results.curves": ("plot",),
    "runs.results.result": ("Result",),
    "runs.resume": ("resume",),
    "runs.run": ("run",),
    "runs.watch.state": ("RoundState",),
    "sweeps.sweep": ("sweep",),
}  # fmt: skip
_public = names_from(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package."""
    if name not in __all__ and not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    return _public(name)


def __dir__() -> list[str]:
    return sorted(__all__)
