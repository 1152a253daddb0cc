"""FedNova (Wang et al., NeurIPS 2020) as a user would write it: single numbers travel beside vectors."""

from dataclasses import dataclass

import torch

from fedsmoo import FedAvg, Vectors


@dataclass(frozen=True)
class FedNova(FedAvg):
    """Each client's update is divided by its number of steps, and their mean is scaled by the mean of these.

    client   sends (w_i - w) / K_i and K_i
    server   w <- w + mean(K_i) mean((w_i - w) / K_i)
    """

    up = ("d", "k")
    server = ("k", "steps")  # what came of both ways to know the mean of the steps
    scalars = ("k", "steps")

    def finish(self, w, down, me, rnd):
        return me, Vectors(d=(w - down.w) / rnd.steps, k=rnd.steps)

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=srv.w + mean.k * mean.d, k=mean.k, steps=torch.full_like(srv.steps, rnd.steps))
