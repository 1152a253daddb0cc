"""Federated optimisation, written once and run everywhere."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fedsmoo.version import __version__

if TYPE_CHECKING:
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

# Where the names above are found. They are imported when first used: PyTorch takes seconds, and the program must be
# able to say what Ctrl-C does before that.
HOMES = ("algorithms", "api", "core", "core.algorithm", "data.partition", "experiment.config", "experiment.loop")


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package."""
    if name in __all__:
        modules = (import_module(f"fedsmoo.{home}") for home in HOMES)
        globals()[name] = value = next(getattr(m, name) for m in modules if hasattr(m, name))
        return value
    if not name.startswith("_") and find_spec(f"fedsmoo.{name}") is not None:
        return import_module(f"fedsmoo.{name}")
    raise AttributeError(f"module 'fedsmoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
