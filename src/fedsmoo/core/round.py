"""Where a method is: the round, the step and the client that its functions are called for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Round:
    """What a method may know of the current round besides vectors.

    ``steps`` is, in ``finish``, the number of local steps of each client and, in ``aggregate``, their mean over the
    cohort, with the weights of the vectors' mean; ``share`` is n / m with the n clients that really took part. Of C
    clients at once each may be a number per client, ``[C, 1]``: several runs can share a batch.
    """

    number: Any
    lr: Any
    steps: Any
    share: Any
    step: Any = None  # in direction (as grad.rnd) and update: the local step, from 0
    client: Any = None  # its number; the samples it holds; how many of each class, [.., K]
    samples: Any = None
    labels: Any = None
    n: Any = None  # in combine and aggregate: how many clients replied
