"""Methods that average a body and leave each client a head of its own: FedPer (Arivazhagan et al., 2019) and FedRep
(Collins et al., ICML 2021, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.algorithms.fedavg import FedAvg
from fedsmoo.core import Gradient, Round, Vectors, derived, option


@dataclass(frozen=True)
class Parted(FedAvg):
    """FedAvg of all but a part of the model, the mask ``part``, which each client keeps."""

    own = ("v",)
    stays = ("part",)

    def first_contact(self, down: Vectors) -> Vectors:
        return Vectors(v=down.w)

    def start(self, down: Vectors, me: Vectors) -> Tensor:
        return torch.where(down.part > 0, me.v, down.w)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        return me.replace(v=w), Vectors(w=w)

    def personal(self, down: Vectors, me: Vectors) -> Tensor | None:
        return self.start(down, me)


@dataclass(frozen=True)
class FedPer(Parted):
    """FedAvg of all but a head, which each client keeps.

    client   w_i as FedAvg, from w with the client's own head;   sends the body.  w with that head serves the client
    server   as FedAvg, of the body
    """

    head: str = option("last", "parameters that stay, by name ('fc.*,norm*'), or the last layer")
    masks = derived(lambda self: {"part": self.head})


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer whose clients train their head first and then the body.

    client   w_i <- w_i - lr M g(w_i)      K times, from w with the client's own head;   sends the body
             M: the head in the first head_share K steps, then the body
    server   as FedAvg, of the body
    """

    head_share: float = option(0.8, "share of the local steps in which the head is trained", within="[0, 1]")
    local = ("moves",)
    moving = "moves"

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        g, me = self.slope(w, grad, down, me)
        first = grad.rnd.step < self.head_share * grad.rnd.steps - 1e-3  # so that no rounding decides
        moves = torch.where(first, down.part, 1 - down.part)
        return moves * g, me.replace(moves=moves.expand_as(w))

    def update(self, w: Tensor, d: Tensor, me: Vectors, rnd: Round) -> tuple[Tensor, Vectors]:
        return super().update(w, me.moves * d, me, rnd)  # weight decay leaves the other part alone, too
