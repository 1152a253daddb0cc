"""The privacy that noisy rounds spend, by Google's ``dp-accounting`` (Renyi differential privacy)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedsmoo.core import FedsmooError


def epsilon_spent(clients: int, cohort: int, noises: Sequence[float], delta: float, random_size: bool) -> float:
    """Return the epsilon that rounds spent together; in each the sum of bounded changes had so much noise per bound.

    With a cohort of random size, in which each of m clients is with chance n / m, neighbours are federations with and
    without one client. With a cohort of n drawn without replacement they are federations in which one client is
    another: a sum then differs by up to twice the bound, so that the noise counts half.

    Raises:
        FedsmooError: if ``dp-accounting`` is not installed.
    """
    try:
        from absl import logging
        from dp_accounting import dp_event
        from dp_accounting.privacy_accountant import NeighboringRelation
        from dp_accounting.rdp import RdpAccountant
    except ImportError as e:
        raise FedsmooError("privacy is accounted for by dp-accounting: pip install 'fedsmoo[privacy]'") from e
    if min(noises, default=1.0) == 0:
        return math.inf  # which the library says in some of these cases, and divides by 0 in others
    logging.set_verbosity(logging.ERROR)  # it warns of each order that it leaves out, which only makes epsilon larger
    relations = NeighboringRelation.REPLACE_ONE, NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = RdpAccountant(neighboring_relation=relations[random_size])
    for noise, rounds in Counter(noises).items():
        event: dp_event.DpEvent = dp_event.GaussianDpEvent(noise if random_size else noise / 2)
        if random_size:
            event = dp_event.PoissonSampledDpEvent(cohort / clients, event)
        elif cohort < clients:
            event = dp_event.SampledWithoutReplacementDpEvent(clients, cohort, event)
        accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def private_part(algorithm: Any) -> Any:
    """Return what makes a method private, however deep inside it is; ``None``: it is not."""
    while algorithm is not None and not (hasattr(algorithm, "noise") and hasattr(algorithm, "bound")):
        algorithm = getattr(algorithm, "inner", None)
    return algorithm
