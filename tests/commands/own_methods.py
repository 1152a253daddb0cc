"""Methods as users write them: each breaks one rule at a marked line, or is odd and right."""

from __future__ import annotations

HEAD = """import random
import time
from dataclasses import dataclass

import numpy as np
import torch

from fedsmoo import Algorithm, FedAvg, FedDyn, FedsmooError, SCAFFOLD, Vectors, norm, option, unit
from fedsmoo.algorithms.around import Around


@dataclass(frozen=True)
"""

# name: the class, with "# here" on the line that has to be named, and what has to be said of it
BROKEN: dict[str, tuple[str, str]] = {
    "branches on a norm": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        d = w - down.w
        if d.norm() > 1:  # here
            d = d / d.norm()
        return me, Vectors(w=down.w + d)
""", "in finish: branches on the value of a vector (bool of a tensor)"),
    "branches on a kept norm": ("""class M(FedAvg):
    def direction(self, w, grad, down, me):
        g = grad(w)
        return (g if norm(g) > 1 else 2 * g), me  # here
""", "in direction: branches on the value of a vector (bool of a tensor)"),
    "branches on the steps": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        scale = 0.5 if rnd.steps > 2 else 1.0  # here
        return me, Vectors(w=down.w + scale * (w - down.w))
""", "in finish: branches on the value of a vector (bool of a tensor)"),
    "reads a number": ("""class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        size = min(1.0, 3 / (mean.w - srv.w).norm().item())  # here
        return srv.replace(w=srv.w + size * (mean.w - srv.w))
""", "in aggregate: reads the value of a vector (item of a tensor)"),
    "goes through numpy": ("""class M(FedAvg):
    def pull(self, w, down):
        far = np.abs((w - down.w).numpy()).max()  # here
        return far * (w - down.w)
""", "in pull: reads the value of a vector (numpy of a tensor)"),
    "goes through a list": ("""class M(FedAvg):
    def pull(self, w, down):
        return max(w.tolist()) * (w - down.w)  # here
""", "in pull: reads the value of a vector (tolist of a tensor)"),
    "picks by a mask": ("""class M(FedAvg):
    def direction(self, w, grad, down, me):
        g = grad(w)
        return g / g[g > 0].sum(), me  # here
""", "in direction: reads the value of a vector"),
    "adds to w in place": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        w.mul_(0.9)  # here
        return me, Vectors(w=w)
""", "in finish: changes its input w in place (mul_)"),
    "changes what was sent by an index": ("""class M(FedAvg):
    def start(self, down, me):
        down.w[0] = 0.0  # here
        return down.w
""", "in start: changes its input down.w in place (copy_)"),
    "changes own state in place": ("""class M(FedDyn):
    def finish(self, w, down, me, rnd):
        me.lam.sub_((w - down.w) / self.beta)  # here
        return me, Vectors(w=w)
""", "in finish: changes its input me.lam in place (sub_)"),
    "sets an attribute": ("""class M(FedDyn):
    def finish(self, w, down, me, rnd):
        me.lam = me.lam - (w - down.w) / self.beta  # here
        return me, Vectors(w=w)
""", "in finish: AttributeError: lam cannot be set on vectors that are given: write .replace(lam=...)"),
    "torch's chance": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w + 0.01 * torch.randn_like(w))  # here
""", "in finish: draws at random from PyTorch's global generator (randn_like)"),
    "numpy's chance": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        noise = 0.01 * np.random.randn()  # here
        return me, Vectors(w=w + noise)
""", "in finish: draws from numpy's global generator"),
    "Python's chance": ("""class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        keep = random.gauss(0.0, 1.0) > 0  # here
        return srv.replace(w=mean.w if keep else srv.w)
""", "in aggregate: draws from Python's global generator"),
    "the clock": ("""class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        now = time.perf_counter()  # here
        return srv.replace(w=mean.w + 1e-6 * now)
""", "in aggregate: gives two answers to one question (it calls time.perf_counter)"),
    "two clocks": ("""class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        now = time.monotonic()  # here
        then = time.perf_counter()
        return srv.replace(w=mean.w + 1e-6 * (now - then))
""", "in aggregate: gives two answers to one question (it calls time.monotonic)"),
    "a clock beside roots": ("""class M(FedAvg):
    server = scalars = ("a", "b", "c", "d", "e", "f")
    def aggregate(self, srv, mean, rnd):
        size = srv.a.sqrt() + srv.b.sqrt() + srv.c.sqrt() + srv.d.sqrt() + srv.e.sqrt() + srv.f.sqrt()
        return srv.replace(w=mean.w + size * time.perf_counter())  # here
""", "in aggregate: gives two answers to one question"),
    "a clock where the model is negative": ("""class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w + srv.w.clamp(max=0) * time.perf_counter())  # here
""", "in aggregate: gives two answers to one question"),
    "a memory of its own": ("""class M(FedAvg):
    seen = []
    def aggregate(self, srv, mean, rnd):
        self.seen.append(1)
        return srv.replace(w=mean.w / len(self.seen))  # here
""", "in aggregate: gives two answers to one question"),
    "one of its numbers": ("""class M(FedAvg):
    a: float = 0.5
    def aggregate(self, srv, mean, rnd):
        object.__setattr__(self, "a", 0.9 * self.a)
        return srv.replace(w=mean.w)  # here
""", "in aggregate: keeps something on the method itself"),
    "the norm of all clients": ("""class M(FedAvg):
    def direction(self, w, grad, down, me):
        g = grad(w)
        return g / torch.linalg.vector_norm(g), me  # here
""", "in direction: a client of several at once, [C, P], is not what it is alone, [P]"),
    "the mean of all clients": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        centre = w - w.mean()  # here
        return me, Vectors(w=centre)
""", "in finish: a client of several at once"),
    "a server vector undeclared": ("""class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=mean.w, p=mean.w - srv.w)  # here
""", "in aggregate: returns 'p', which is not in down or server"),
    "a server vector forgotten": ("""class M(FedAvg):
    server = ("p",)
    def aggregate(self, srv, mean, rnd):
        return Vectors(w=mean.w + srv.p)  # here
""", "in aggregate: does not return 'p', which server declares"),
    "reads what nobody sent": ("""class M(FedAvg):
    def direction(self, w, grad, down, me):
        return grad(w) + down.c, me  # here
""", "in direction: reads what is not declared for it: no vector named 'c' here; there are: w"),
    "sends what is not declared": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, extra=w)  # here
""", "in finish: returns 'extra', which is not in up"),
    "sends what lives one round": ("""class M(FedAvg):
    local = ("m",)
    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, m=me.m)  # here
""", "in finish: returns 'm', which is not in up"),
    "a wrong shape": ("""class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=norm(mean.w))  # here
""", "in aggregate: returns w of shape [1], but it must be of shape [P]"),
    "a number for a vector": ("""class M(FedAvg):
    def pull(self, w, down):
        return norm(w - down.w)  # here
""", "in pull: returns a tensor of shape [1], but must return one of shape [P]"),
    "nothing": ("""class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        srv.replace(w=mean.w)  # here
""", "in aggregate: returns nothing (None), but must return Vectors of down and server"),
    "one thing of two": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        return Vectors(w=w)  # here
""", "in finish: returns a Vectors, but must return (Vectors of own, Vectors of up)"),
    "one own vector for all": ("""class M(FedAvg):
    own = ("old",)
    def pull(self, w, down):
        return 0.1 * (w - down.w)
    def finish(self, w, down, me, rnd):
        return me.replace(old=down.w), Vectors(w=w)  # here
""", "in finish: returns old of shape [P], but it must be of shape [C, P]: write .expand_as(w)"),
    "a vector that nobody sends": ("""class M(FedAvg):  # here
    up = ("w", "c")
""", "in M: finish does not return 'c', which up declares"),
    "an error": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        return me, Vectors(w={}["boom"])  # here
""", "in finish: KeyError: 'boom'"),
    "a helper of the user's": ("""class M(FedAvg):
    def finish(self, w, down, me, rnd):
        return me, Vectors(w=helper(w))

def helper(w):
    return w if w.sum() > 0 else -w  # here
""", "in helper: branches on the value of a vector"),
    "names in a string": ("""class M(FedAvg):
    up = ("w")  # here
""", "in M: up is 'w', but must be a tuple of names"),
    "the model is not sent": ("""class M(FedAvg):
    down = ("c",)  # here
""", "in M: down must hold the model, 'w'"),
    "a vector on the server twice": ("""class M(FedAvg):
    server = ("w",)  # here
""", "in M: server names 'w', which is on the server already: it is in down"),
    "always float32": ("""class M(FedAvg):
    own = ("c",)
    def first_contact(self, down):
        return Vectors(c=torch.zeros(down.w.shape))  # here
""", "in first_contact: returns c in float32 where its inputs are float64"),
    "always float64": ("""class M(FedAvg):
    def pull(self, w, down):
        return torch.ones_like(w, dtype=torch.float64) * (w - down.w)  # here
""", "in pull: returns float64 where its inputs are float32"),
    "always on the CPU": ("""class M(FedAvg):
    own = ("c",)
    def first_contact(self, down):
        both = torch.zeros(2 * len(down.w), dtype=down.w.dtype)  # here
        return Vectors(c=both[len(down.w) :])
""", "in first_contact: returns a tensor that is on the CPU wherever its inputs are"),
    "no gradient": ("""class M(FedAvg):
    def direction(self, w, grad, down, me):  # here
        return w - down.w, me
""", "in direction: never asks for a gradient"),
    "a wrapper": ("""class M(Around):
    def finish(self, w, down, me, rnd):
        me, up = self.inner.finish(w, down, me, rnd)
        return me, up.map(lambda v: v * (1 if v.sum() > 0 else -1))  # here
""", "in <lambda>: branches on the value of a vector"),
}  # fmt: skip

RIGHT: dict[str, str] = {
    "no box and no help": """class M(FedAvg):
    mu: float = 0.1
    def pull(self, w, down):
        return self.mu * (w - down.w)
""",
    "a personal model": """class M(FedAvg):
    own = ("v",)
    def first_contact(self, down):
        return Vectors(v=down.w)
    def direction(self, w, grad, down, me):
        return grad(w), me.replace(v=me.v - 0.1 * (grad(me.v) + (me.v - down.w)))
""",
    "clipped by where": """class M(FedAvg):
    def finish(self, w, down, me, rnd):
        d = w - down.w
        return me, Vectors(w=down.w + torch.where(norm(d) > 1, unit(d), d))
""",
    "a clamp that hides": """class M(FedAvg):
    own = ("c",)
    def direction(self, w, grad, down, me):
        return grad(w) + 0.01 * me.c.clamp(-0.001, 0.001), me
    def finish(self, w, down, me, rnd):
        return me.replace(c=0.5 * me.c + w - down.w), Vectors(w=w)
""",
    "in place on its own tensors": """class M(FedAvg):
    def finish(self, w, down, me, rnd):
        d = w - down.w
        d[d.abs() < 1e-3] = 0.0
        d.mul_(0.9)
        return me, Vectors(w=down.w + d)
""",
    "numbers by their places": """class M(FedAvg):
    def finish(self, w, down, me, rnd):
        d = w - down.w
        back = torch.arange(d.shape[-1] - 1, -1, -1, device=d.device)
        d = 0.5 * d + 0.1 * d[..., back] + 0.1 * d.index_select(-1, back)
        return me, Vectors(w=(down.w + d).index_fill(-1, back[:2], 0.0))
""",
    "the largest tenth": """class M(FedAvg):
    own = ("e",)
    def finish(self, w, down, me, rnd):
        d = w - down.w + me.e
        kept = d.abs().topk(max(1, d.shape[-1] // 10), -1).indices
        sent = torch.zeros_like(d).scatter(-1, kept, d.gather(-1, kept))
        return me.replace(e=d - sent), Vectors(w=down.w + sent)
""",
    "switches and rounds": """class M(FedAvg):
    late: bool = option(True, "start late")
    def aggregate(self, srv, mean, rnd):
        if self.late and rnd.number < 1:
            return srv
        return srv.replace(w=mean.w)
""",
    "seeded noise at the server": """class M(FedAvg):
    def aggregate(self, srv, mean, rnd):
        generator = torch.Generator().manual_seed(rnd.number)
        noise = torch.randn(mean.w.shape, generator=generator, dtype=mean.w.dtype).to(mean.w.device)
        return srv.replace(w=mean.w + 1e-3 * noise)
""",
    "a gradient at the global model": """class M(FedAvg):
    def direction(self, w, grad, down, me):
        return 0.5 * grad(w) + 0.5 * grad(down.w), me
""",
    "a number beside the model": """class M(FedAvg):
    up, scalars = ("w", "steps"), ("steps",)
    def finish(self, w, down, me, rnd):
        return me, Vectors(w=(w - down.w) / rnd.steps, steps=rnd.steps)
    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=srv.w + mean.steps * mean.w)
""",
    "a number that is computed": """class M(FedAvg):
    up, server, scalars = ("w", "far"), ("far",), ("far",)
    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, far=norm(w - down.w) ** 2)
    def aggregate(self, srv, mean, rnd):
        d = mean.w - srv.w
        return srv.replace(w=srv.w + (mean.far / (2 * norm(d) ** 2 + 1e-3)).clamp(min=1) * d, far=mean.far)
""",
}  # fmt: skip


def written(body: str) -> tuple[str, int]:
    """A file's text with a class in it, and the number of its marked line (0: none)."""
    text = HEAD + body
    marked = [k for k, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
    return text, marked[0] if marked else 0
