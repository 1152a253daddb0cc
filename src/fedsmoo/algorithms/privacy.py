"""Client-level differential privacy, an option of any method (DP-FedAvg: McMahan et al., ICLR 2018, Algorithm 1)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from fedsmoo.algorithms.around import Around
from fedsmoo.core import FedsmooError, Round, Vectors, derived, norm, option


@dataclass(frozen=True)
class Private(Around):
    """Any method, whose server learns little of any one client: changes are bounded, and their mean is noisy.

    client   u_i = v_i - v  where v was received too (w), else v_i;   u_i <- u_i min(1, bound / ||u_i||)
    server   goes on as the method does, with v + mean(u_i) + N(0, (noise bound / n)^2)

    ||u_i|| is the norm of all that a client sends, single numbers too, but for those that follow from how many steps it
    made: these are sent as they are, and are no secret only where all clients make as many, which runs see to. With a
    cohort of random size (Bernoulli) n is the ``expected`` one, also in the mean and for the method inside, and a round
    that draws nobody has its noise as any other: who came is hidden, too. Clients count alike: a weighted mean
    has no such bound. The paper's clients bound their change after every local step as well; what is sent, and so the
    privacy, has the same bound.
    """

    bound: float = option(1.0, "norm of all that a client may change", within="(0, inf)")
    noise: float = option(1.0, "deviation of the noise in the sum of changes, in units of the bound", within="[0, inf)")
    expected: float | None = option(None, "mean size of cohorts of random size", within="(0, inf)")
    expects = derived(lambda self: self.expected)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.rows:
            raise FedsmooError(f"{self.inner.label} sees every reply, so that noise in their mean would hide nobody")
        if self.inner.stays:
            raise FedsmooError(
                f"{self.inner.label} has parameters that stay at the clients, which privacy does not serve"
            )

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        me, up = self.inner.finish(w, down, me, rnd)
        hidden = [n for n in self.up if n not in self.public]
        numbers = {n: up_number(getattr(up, n), w) if n in self.scalars else getattr(up, n) for n in hidden}
        changes = {n: v - getattr(down, n) if n in self.shared else v for n, v in numbers.items()}
        factor = (self.bound / norm(torch.cat([norm(u) for u in changes.values()], -1))).clamp(max=1.0)
        bounded = {n: getattr(down, n) + factor * u if n in self.shared else factor * u for n, u in changes.items()}
        return me, up.replace(**bounded)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        n = rnd.n if self.expected is None else self.expected
        sent = self.inner.sent(srv)

        def hidden(name: str, v: Tensor) -> Tensor:
            before: Tensor = getattr(sent, name) if name in self.shared else torch.zeros_like(v)
            noise = (self.noise * self.bound / n) * rnd.normal(f"privacy of {name}", v)
            change: Tensor = (rnd.n / n) * (v - before)
            return before + change + noise

        noisy = {name: hidden(name, v) for name, v in mean.items() if name not in self.public}
        return self.inner.aggregate(srv, mean.replace(**noisy), dataclasses.replace(rnd, n=n))

    @property
    def label(self) -> str:
        return f"{self.inner.label}+private"


def up_number(v: Tensor | float, like: Tensor) -> Tensor:
    """Return a single number that is sent as a tensor ``[.., 1]``."""
    return torch.as_tensor(v, dtype=like.dtype, device=like.device).expand(*like.shape[:-1], 1)


# The name of the setting privacy -> what is put around the method; off is the method itself.
PRIVACIES: dict[str, type[Around]] = {"client": Private}
