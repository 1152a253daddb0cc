"""Every method through one suite; and the suite itself against methods that break one rule each.

The broken methods below stand in for papers of 2024.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from fedsmoo import simulate
from fedsmoo.algorithms import ALGORITHMS, FedAvg, FedDyn
from fedsmoo.core import Algorithm, FedsmooError, LocalRule, Round, Vectors, derived, norm, option
from fedsmoo.core.gradient import StepGradient
from fedsmoo.core.local import local_step
from fedsmoo.runs.build import algorithm_class, make_algorithm
from fedsmoo.testing import check_algorithm

from .variants import EVERYTHING, METHODS, SAME_STEPS

USER_FILE = '''"""Sign-SGD with a mean of differences (made up for this test, 2024)."""
from dataclasses import dataclass
from fedsmoo import Algorithm, Vectors, option

@dataclass(frozen=True)
class SignDelta(Algorithm):
    """Signs of gradients with a memory; the difference travels, not the model.

    client   w_i <- w_i - lr [sign(g) + kappa e_i];   e_i <- w_i - w;   sends w_i - w
    server   w <- w + mean
    """

    kappa: float = option(0.5, "weight of the memory")
    own = ("e",)
    up = ("delta",)

    def direction(self, w, grad, down, me):
        return grad(w).sign() + self.kappa * me.e, me

    def finish(self, w, down, me, rnd):
        return me.replace(e=w - down.w), Vectors(delta=w - down.w)

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=srv.w + mean.delta)
'''


@pytest.mark.parametrize("name", EVERYTHING)
def test_method(name: str) -> None:
    # Relaxed adds nothing that traces differently from one method to the next: one of each kind of state is traced.
    traced = not name.startswith("relaxed") or name in ("relaxed-fedavg", "relaxed-fedsmoo", "relaxed-fedlesam-s")
    check_algorithm(EVERYTHING[name], compiled=traced and name not in SAME_STEPS)


def test_a_method_in_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USER_FILE)
    spec = f"{tmp_path / 'mine.py'}:SignDelta"
    check_algorithm(make_algorithm(spec, {"kappa": "0.25"}))
    assert make_algorithm(spec, {"kappa": "0.25"}).options() == {"kappa": 0.25}
    assert algorithm_class(spec).__name__ == "SignDelta"


def test_all_promised_methods_are_there() -> None:
    names = "fedavg fedadam scaffold fedcm feddyn fedsam mofedsam fedsmoo fedprox fedavgm fedyogi fedadagrad fedspeed"
    assert set(names.split()) | {"fedgamma", "fedlesam", "fedlesam-s", "fedlesam-d"} <= set(ALGORITHMS)


@pytest.mark.parametrize("name", METHODS)
def test_own_state_starts_from_what_was_sent(name: str) -> None:
    """At first contact every own vector is zero or the model that was sent, bit for bit, whatever was sent before."""
    algorithm = METHODS[name]
    for seed in (0, 1):
        w = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        algorithm.init(torch.ones(5))  # another run's start leaves no trace
        own = algorithm.first_contact(algorithm.init(w).pick(algorithm.down))
        for key, v in own.items():
            assert torch.equal(v, w if key in ("w_old", "theta", "v", "last") else torch.zeros(5))


# What these do shows among several clients, or on a model: tests/algorithms/boxes/test_boxes.py.
ELSEWHERE = {"fedexp", "trimmed-mean", "krum", "multi-krum", "rfa", "norm-bounded"}
ELSEWHERE |= {"fedlc", "fedntd", "fedgmt", "moon", "qfedavg"}


@pytest.mark.parametrize("name", sorted(METHODS.keys() - ELSEWHERE))
def test_every_number_among_the_options_matters(name: str) -> None:
    """A hyper-parameter that changes nothing would be a flag that lies."""
    plain = METHODS[name]
    for key, value in plain.options().items():
        if isinstance(value, float):
            changed = dataclasses.replace(plain, **{key: 0.5 * value if value else 0.5})
            assert two_rounds(plain) != two_rounds(changed), key


def two_rounds(algorithm: Algorithm) -> list[float]:
    """The model, and what a client keeps, after one that was met in round 1 trains again in round 2."""
    take = lambda v: (torch.tensor([1.0, 3.0]) * (v - torch.tensor([2.0, -1.0])), torch.zeros(()))  # noqa: E731
    srv, own = algorithm.init(torch.tensor([0.5, 1.0])), None
    for number in range(3):
        down, rnd = algorithm.sent(srv), Round(number, 0.1, 2, 0.5)
        down = down.replace(**{n: torch.tensor([1.0, 0.0]) for n in algorithm.masks})
        me = algorithm.first_contact(down) if own is None else own
        me = me.replace(**{n: torch.zeros(2) for n in algorithm.local})
        w = algorithm.start(down, me)
        for k in range(2):
            w, me = local_step(algorithm, LocalRule(), w, StepGradient(take, rnd.at_step(torch.tensor([k]))), down, me)
        own, up = algorithm.finish(w, down, me, rnd)
        srv = algorithm.aggregate(srv, up, Round(number, 0.1, 2.0, 0.5))
    assert own is not None
    return [x for v in (srv.w, *(v for _, v in own.pick(algorithm.own).items())) for x in v.tolist()]


BOX = "A broken method.\n\n    client   w_i <- w_i - lr g(w_i)\n    "


@dataclass(frozen=True)
class ReadsUndeclared(FedAvg):
    __doc__ = BOX

    def direction(self, w, grad, down, me):
        return grad(w) + down.c, me


@dataclass(frozen=True)
class SendsUndeclared(FedAvg):
    __doc__ = BOX

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, extra=w)


@dataclass(frozen=True)
class DeclaresUnused(FedAvg):
    __doc__ = BOX
    down = ("w", "c")


@dataclass(frozen=True)
class OwnUnused(FedAvg):
    __doc__ = BOX
    own = ("c",)


@dataclass(frozen=True)
class InPlace(FedDyn):
    __doc__ = BOX

    def finish(self, w, down, me, rnd):
        me.lam.sub_((w - down.w) / self.beta)
        return me, Vectors(w=w)


@dataclass(frozen=True)
class Impure(FedAvg):
    __doc__ = BOX

    def direction(self, w, grad, down, me):
        return grad(w) + 1e-3 * torch.rand(()), me


@dataclass(frozen=True)
class NormOfAll(FedAvg):
    __doc__ = BOX

    def direction(self, w, grad, down, me):
        g = grad(w)
        return g / g.norm(), me  # the norm of all clients together


@dataclass(frozen=True)
class BranchesOnANumber(FedAvg):
    __doc__ = BOX
    mu: float = option(0.1, "proximal weight")

    def pull(self, w, down):
        return self.mu * (w - down.w) if self.mu > 0 else None


@dataclass(frozen=True)
class Untraceable(FedAvg):
    __doc__ = BOX

    def direction(self, w, grad, down, me):
        torch._dynamo.graph_break()  # does nothing where nothing is traced
        return grad(w), me


@dataclass(frozen=True)
class NoHelp(FedAvg):
    __doc__ = BOX
    mu: float = 0.1

    def pull(self, w, down):
        return self.mu * (w - down.w)


@dataclass(frozen=True)
class NoBox(FedAvg):
    """A sentence, but no box."""


@dataclass(frozen=True)
class Many(DeclaresUnused, OwnUnused, BranchesOnANumber):
    """Several things wrong."""


@dataclass(frozen=True)
class Personal(FedAvg):
    """Ditto's: a model of each client's own, which nothing that is sent depends on."""

    lam: float = 0.5
    own = ("v",)

    def first_contact(self, down):
        return Vectors(v=down.w)

    def direction(self, w, grad, down, me):
        return grad(w), me.replace(v=me.v - 0.1 * (grad(me.v) + self.lam * (me.v - down.w)))


@dataclass(frozen=True)
class Hidden(FedAvg):
    """A clamp that lets through what lies between two numbers, and nothing of what lies far from them."""

    own = ("c",)

    def direction(self, w, grad, down, me):
        return grad(w) + me.c.clamp(-1e-3, 1e-3).abs(), me

    def finish(self, w, down, me, rnd):
        return me.replace(c=w - down.w), Vectors(w=w)


@dataclass(frozen=True)
class Steady(FedAvg):
    """Numbers that may hardly change."""

    rate: float = option(1.0, "a rate", within="[1, 1.01]")
    late: int = option(2, "rounds")

    def pull(self, w, down):
        return self.rate * (w - down.w)


@dataclass
class Thawed:
    """Not a method at all: a plain dataclass.

    client   nothing
    """


BROKEN = [
    (ReadsUndeclared, r"test_contract.py:\d+ in direction: reads what is not declared"),
    (SendsUndeclared, r"test_contract.py:\d+ in finish: returns 'extra', which is not in up"),
    (DeclaresUnused, "down declares 'c', but nothing depends on it"),
    (OwnUnused, "own declares 'c', but nothing depends on it"),
    (InPlace, r"test_contract.py:\d+ in finish: changes its input me.lam in place"),
    (Impure, r"test_contract.py:\d+ in direction: draws at random"),
    (NormOfAll, r"test_contract.py:\d+ in direction: .*is not what it is alone"),
    (BranchesOnANumber, r"with hyper-parameters of shape \[C, 1\], .*Boolean value of Tensor"),
    (Thawed, "is not a frozen dataclass"),
]


@pytest.mark.parametrize(("cls", "reason"), BROKEN, ids=[c.__name__ for c, _ in BROKEN])
def test_a_broken_method_is_caught(cls: type[Algorithm], reason: str) -> None:
    with pytest.raises(AssertionError, match=reason) as caught:
        check_algorithm(cls(), compiled=False)
    assert "\n" not in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(AssertionError) as caught:
        check_algorithm(Many(), compiled=False)
    lines = str(caught.value).splitlines()
    assert all(w in line for w, line in zip(("down declares 'c'", "own declares 'c'", "[C, 1]"), lines, strict=True))


def test_a_graph_break_is_caught() -> None:
    with pytest.raises(AssertionError, match="does not trace into one graph"):
        check_algorithm(Untraceable())


@pytest.mark.parametrize(("cls", "notes"), [
    (NoHelp, ["NoHelp.mu has no help: write option(default, 'its meaning')"]),
    (NoBox, ["NoBox: the docstring has no box (lines that start with 'client' or 'server')"]),
    (Personal, ["Personal.lam has no help: write option(default, 'its meaning')",
                "Personal: the docstring has no box (lines that start with 'client' or 'server')",
                "Personal.own declares 'v', but nothing depends on it but itself: a personal model?"]),
    (Hidden, ["Hidden: the docstring has no box (lines that start with 'client' or 'server')"]),
    (Steady, ["Steady: the docstring has no box (lines that start with 'client' or 'server')"]),
])  # fmt: skip
def test_what_is_odd_and_right_passes_with_notes(cls: type[Algorithm], notes: list[str]) -> None:
    assert check_algorithm(cls(), compiled=False) == notes


def test_what_comes_with_the_package_needs_its_box_and_its_paper() -> None:
    cls = dataclass(frozen=True)(type("Mine", (FedAvg,), {"__module__": "fedsmoo.algorithms", "__doc__": "No box."}))
    with pytest.raises(AssertionError, match=r"Mine: the docstring has no box.*\n.*does not name the paper"):
        check_algorithm(cls(), compiled=False)


@dataclass(frozen=True)
class LeastOfTwo(FedAvg):
    """Two steps of which the shorter is taken, which is the one here on all vectors of the check (Kim et al., 2024).

    client   eta_i: the least of lr and ||w_i - old_i||;   w_i <- w_i - eta_i d;   old_i: where it was
    """

    local = ("old", "eta")
    scalars = ("eta",)

    def direction(self, w, grad, down, me):
        eta = torch.minimum(1e6 * norm(w - me.old), 0 * me.eta + grad.rnd.lr)
        return grad(w), me.replace(old=w, eta=eta)

    def update(self, w, d, me, rnd):
        return w - me.eta * d, me


def test_what_shows_on_none_of_the_vectors_tried_is_a_note() -> None:
    """It was called unused, and a right method was refused for it."""
    (note,) = check_algorithm(LeastOfTwo(), compiled=False)
    assert note.startswith("LeastOfTwo.local declares 'old', but nothing depends on it on the vectors tried")


@dataclass(frozen=True)
class Stale(FedAvg):
    """Clients train on the model of four rounds ago (made up for this test, 2024).

    server   w(t) is what the server had four rounds ago
    """

    server = ("now", "s1", "s2", "s3")

    def init(self, w):
        return super().init(w).map(lambda _: w.clone())

    def aggregate(self, srv, mean, rnd):
        now = srv.now + self.lr_server * (mean.w - srv.w)
        return srv.replace(w=srv.s3, s3=srv.s2, s2=srv.s1, s1=srv.now, now=now)


@dataclass(frozen=True)
class Table(FedAvg):
    """The server keeps a number for each of three clients, and sees their replies (made up for this test, 2024).

    client   sends w_i and f_i
    server   w <- the mean of w_i with the weights that it keeps of them
    """

    up, rows, scalars = ("w", "f"), ("w", "f"), ("f",)
    server = ("lam",)
    sizes = {"lam": 3}

    def init(self, w):
        return super().init(w).replace(lam=w.new_ones(3))

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, f=rnd.samples)

    def combine(self, srv, rows, weights, rnd):
        mine = srv.lam[rnd.client[:, 0].long()][:, None] + rows.f
        return Vectors(w=(mine * rows.w).sum(0) / mine.sum(), f=rows.f.mean(0))


def test_what_takes_rounds_or_one_client_s_row_to_show_is_used() -> None:
    """A queue of models, rows that only combine reads, and a table of clients, whose numbers went up to 11."""
    assert check_algorithm(Stale(), compiled=False) == []
    assert check_algorithm(Table(), compiled=False) == []
    data = (torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3)
    settings = {"client_indices": [range(9), range(9, 15), range(15, 30)], "cohort": 2, "rounds": 2, "local_steps": 1}
    result = simulate("softmax", (*data, *data), Table(), device="cpu", progress=False, **settings)
    assert torch.equal(result.server.lam, torch.ones(3))


def one_hot_mean(out, y):
    return functional.one_hot(y, out.shape[-1]).to(out.dtype)


@dataclass(frozen=True)
class Classes(FedAvg):
    """Clients send how many samples of each of five classes they hold, and meet (made up for this test, 2024).

    client   h_i: shares of classes among its samples, and in its last batch
    server   as FedAvg;   h <- mean(h_i)
    """

    classes: int = option(5, "classes of the data", counts=True)
    down, up, local = ("w", "h"), ("w", "h"), ("met",)
    sizes = derived(lambda self: {"h": self.classes, "met": self.classes})

    def direction(self, w, grad, down, me):
        g = grad(w) * (1 + down.h.sum(-1, keepdim=True))
        return g, me.replace(met=grad.mean(w, one_hot_mean))

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=w, h=rnd.labels / rnd.samples + me.met)

    def aggregate(self, srv, mean, rnd):
        return super().aggregate(srv, mean, rnd).replace(h=mean.h)


@dataclass(frozen=True)
class Unsized(FedAvg):
    local = ("met",)

    def direction(self, w, grad, down, me):
        return grad(w), me.replace(met=grad.mean(w, one_hot_mean))


def test_a_number_for_each_class() -> None:
    """The check had three classes, whatever the data, so that no method could keep a number for each."""
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 5
    settings = {"client_indices": [range(9), range(9, 15), range(15, 30)], "cohort": 3, "rounds": 1, "batch_size": 64}
    result = simulate("softmax", (x, y, x, y), Classes(), local_epochs=1, device="cpu", progress=False, **settings)
    shares = [torch.bincount(part, minlength=5) / len(part) for part in (y[:9], y[9:15], y[15:])]
    assert torch.allclose(result.server.h, 2 * sum(shares) / 3)
    check_algorithm(Classes(), compiled=False, classes=5)
    x7, y7 = x[:28], torch.arange(28) % 7  # as many as the vectors of the check have numbers
    settings["client_indices"] = [range(9), range(9, 15), range(15, 28)]
    simulate("softmax", (x7, y7, x7, y7), Classes(classes=7), device="cpu", progress=False, **settings)
    settings["client_indices"] = [range(9), range(9, 15), range(15, 30)]
    with pytest.raises(AssertionError, match=r"sizes were checked on 3 classes and 4 features; others: check_algor"):
        check_algorithm(Classes(), compiled=False)
    with pytest.raises(FedsmooError, match=r"in direction: returns met of shape \[5\], but it must be of shape \[4\]"):
        simulate("softmax", (x, y, x, y), Classes(classes=4), device="cpu", progress=False, **settings)
    with pytest.raises(FedsmooError, match=r"met of shape \[3\], .* shape \[P\]: another length .* goes into sizes"):
        simulate("softmax", (x, y, x, y), Unsized(), device="cpu", progress=False, **settings)
