"""A method that leaves each client its normalisation layers: FedBN (Li et al., ICLR 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from fedsmoo.algorithms.fedper import Parted
from fedsmoo.core import derived, option


@dataclass(frozen=True)
class FedBN(Parted):
    """FedAvg of all but normalisation layers, which each client keeps, with their running statistics.

    client   w_i as FedAvg, from w with the client's own norms;   sends the rest.  w with these norms serves the client
    server   as FedAvg, of all but the norms
    """

    norms: str = option("norms", "parameters that stay, by name ('bn*'), or those of all normalisation layers")
    masks = derived(lambda self: {"part": self.norms})
    statistics = "local"
