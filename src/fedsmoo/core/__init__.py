"""The contract between methods and engines; it imports no other room.

``algorithm`` says what a method is and shows the round that every engine runs. Its functions are given ``vectors``, a
``round`` and a ``gradient``. ``local`` has one local step, ``server`` the server's half of a round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedsmoo.lazy import names_from

if TYPE_CHECKING:
    from fedsmoo.core.algorithm import Algorithm, Gradient, derived
    from fedsmoo.core.errors import FedsmooError
    from fedsmoo.core.hyper.options import option
    from fedsmoo.core.hyper.schedule import Schedule
    from fedsmoo.core.layout import Layout
    from fedsmoo.core.local import LocalRule
    from fedsmoo.core.random.streams import stream
    from fedsmoo.core.round import Round
    from fedsmoo.core.vectors import Vectors, norm, unit

__all__ = [
    "Algorithm", "FedsmooError", "Gradient", "Layout", "LocalRule", "Round", "Schedule", "Vectors", "derived", "norm",
    "option", "stream", "unit",
]  # fmt: skip

_HOMES = {
    "algorithm": ("Algorithm", "Gradient", "derived"),
    "errors": ("FedsmooError",),
    "layout": ("Layout",),
    "local": ("LocalRule",),
    "hyper.options": ("option",),
    "random.streams": ("stream",),
    "round": ("Round",),
    "hyper.schedule": ("Schedule",),
    "vectors": ("Vectors", "norm", "unit"),
}
__getattr__ = names_from(__name__, _HOMES)
