"""Codes with error feedback, an option of any method (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019):
what a code leaves out of a message is kept and added to the next one, so that nothing is lost for good."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.algorithms.around import Around
from fedsmoo.core import FedsmooError, Round, Vectors, derived


@dataclass(frozen=True)
class Feedback(Around, ABC):
    """Any method, whose clients send codes of their vectors; single numbers are sent whole.

    client   u_i = v_i - v + e_i  where v was received too (w), else v_i + e_i;   sends C(u_i);   e_i <- u_i - C(u_i)
    server   goes on as the method does, with v + mean of C(u_i)
    """

    own = derived(lambda self: (*self.inner.own, *(f"err_{n}" for n in self.kept)))
    relative = derived(lambda self: (*self.inner.relative, *self.shared))
    columnwise = False  # what was sent, which may be anything of the server's vectors, is added to rows

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.stays:
            raise FedsmooError(f"{self.inner.label} has parameters that stay at the clients: send its vectors whole")

    @abstractmethod
    def coded(self, v: Tensor, name: str, rnd: Round) -> Tensor:
        """Return a vector as it arrives at the server."""

    @property
    def vectors(self) -> tuple[str, ...]:
        """What of ``up`` is coded: all but the single numbers."""
        return tuple(n for n in self.up if n not in self.scalars)

    @property
    def kept(self) -> tuple[str, ...]:
        """The vectors whose errors clients keep."""
        return self.vectors

    @property
    def shared(self) -> tuple[str, ...]:
        return tuple(n for n in self.vectors if n in self.down and n not in self.inner.relative)

    def first_contact(self, down: Vectors) -> Vectors:
        none = {f"err_{n}": torch.zeros_like(down.w) for n in self.kept}
        return self.inner.first_contact(down).replace(**none)

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        me, up = self.inner.finish(w, down, me, rnd)
        want = {n: getattr(up, n) - getattr(down, n) if n in self.shared else getattr(up, n) for n in self.vectors}
        want |= {n: want[n] + getattr(me, f"err_{n}") for n in self.kept}
        sent = {n: self.coded(v, n, rnd) for n, v in want.items()}
        return me.replace(**{f"err_{n}": want[n] - sent[n] for n in self.kept}), up.replace(**sent)

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        before = self.inner.sent(srv).pick(tuple(n for n in self.rows if n in self.shared))
        whole = rows.replace(**{n: v + getattr(rows, n) for n, v in before.items()})
        made = self.inner.combine(srv, whole, weights, rnd)
        return made.replace(**{n: getattr(made, n) - v for n, v in before.items()})

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        whole = self.inner.sent(srv)
        mean = mean.replace(**{n: getattr(whole, n) + getattr(mean, n) for n in self.shared})
        return self.inner.aggregate(srv, mean, rnd)
