"""Relaxed initialisation of local training, an option of any method: FedInit (Sun et al., NeurIPS 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.algorithms.around import Around
from fedsmoo.core import Round, Vectors, derived, option


@dataclass(frozen=True)
class Relaxed(Around):
    """Any method, with local training started a little past the global model, away from where the client last ended.

    client   w_i starts at w + b (w - w_last_i);   after K steps w_last_i = w_i

    In a method that starts elsewhere, as FedPer with the client's own head, that start is the w of this line: a part
    that a client keeps stays where it ended.
    """

    b: float = option(
        0.1, "how far past the global model to start; 0 is the method itself", within="[0, inf)", positional=True
    )

    own = derived(lambda self: (*self.inner.own, "w_last"))

    def first_contact(self, down: Vectors) -> Vectors:
        me = self.inner.first_contact(down)
        return me.replace(w_last=self.inner.start(down, me))

    def start(self, down: Vectors, me: Vectors) -> Tensor:
        w = self.inner.start(down, me)
        return w + self.b * (w - me.w_last)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        me, up = self.inner.finish(w, down, me, rnd)
        return me.replace(w_last=w), up

    @property
    def label(self) -> str:
        return f"{self.inner.label}+relaxed"
