"""The contract: named vectors, what a method is, and one client's local steps. Imports nothing else of ours."""

from fedsmoo.core.algorithm import Algorithm, Gradient, Round, derived, option
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.layout import Layout
from fedsmoo.core.local import LocalRule
from fedsmoo.core.streams import stream
from fedsmoo.core.vectors import Vectors, norm, unit

__all__ = [
    "Algorithm",
    "FedsmooError",
    "Gradient",
    "Layout",
    "LocalRule",
    "Round",
    "Vectors",
    "derived",
    "norm",
    "option",
    "stream",
    "unit",
]
