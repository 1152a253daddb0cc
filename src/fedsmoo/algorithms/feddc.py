"""FedDC: local drift decoupling and correction (Gao et al., CVPR 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedsmoo.core import Algorithm, Gradient, Round, Vectors, derived, option


@dataclass(frozen=True)
class FedDC(Algorithm):
    """Each client tracks how far it drifts from the global model, and the server adds the drift back.

    client   w_i <- w_i - lr [g(w_i) - c_i + c + alpha (w_i + h_i - w)]     K times, from w
             h_i <- h_i + w_i - w;   c_i' = c_i - c + (w - w_i) / (K lr);   sends w_i and c_i' - c_i
    server   h <- h + (n/m) mean(w_i - w);   c <- c + (n/m) mean(c_i' - c_i);   w <- mean(w_i) + h

    ``form = "paper"``: last updates for SCAFFOLD's c_i and c, and the drifts of the cohort alone in the model:
    client   c_i <- (w - w_i) / (K lr);   sends w_i + h_i and c_i
    server   w <- mean(w_i + h_i);   c <- mean(c_i)
    """

    alpha: float = option(0.01, "how near a local model, with its drift, stays to the global one", within="[0, inf)")
    form: str = option("released", "the authors' released code, or the paper's equations", ("released", "paper"))
    down = ("w", "c")
    own = ("h", "c")
    up = ("w", "c")
    server = derived(lambda self: ("h",) if self.form == "released" else ())

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        g, me = self.slope(w, grad, down, me)
        return g - me.c + down.c + self.alpha * (w + me.h - down.w), me

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        h, c = me.h + w - down.w, (down.w - w) / (rnd.steps * rnd.lr)
        if self.form == "paper":
            return me.replace(h=h, c=c), Vectors(w=w + h, c=c)
        return me.replace(h=h, c=me.c + c - down.c), Vectors(w=w, c=c - down.c)

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        if self.form == "paper":
            return super().aggregate(srv, mean, rnd).replace(c=mean.c)
        h = srv.h + rnd.share * (mean.w - srv.w)
        return srv.replace(w=mean.w + h, h=h, c=srv.c + rnd.share * mean.c)
