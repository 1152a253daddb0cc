"""What breaks the contract of methods whose server sees replies one by one, or that have personal models."""

from __future__ import annotations

from dataclasses import dataclass

import kinds
import pytest
import torch
from kinds import Ditto, Median

from fedsmoo import FedAvg, FedsmooError, Vectors
from fedsmoo.core.contract import findings
from fedsmoo.core.contract.check import refuse_unsound
from fedsmoo.core.contract.form import Scale
from fedsmoo.testing import check_algorithm


class Wide(Median):
    def combine(self, srv, rows, weights, rnd):
        return Vectors(w=rows.w[0], r=rows.r)


class InPlace(Median):
    def combine(self, srv, rows, weights, rnd):
        rows.w.add_(1)
        return super().combine(srv, rows, weights, rnd)


class Nearest(Median):
    """Looks at values, of which a server has one set whatever the engine."""

    def combine(self, srv, rows, weights, rnd):
        i = int(rows.r.argmin()) if bool(rows.r.sum() > 0) else 0
        return Vectors(w=rows.w[i], r=rows.r[i])


class Elsewhere(Median):
    rows = ("w", "q")


class Mixed(Ditto):
    def personal(self, down, me):
        return me.v / me.v.norm()


class Named(Ditto):
    def personal(self, down, me):
        return Vectors(v=me.v)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (Wide(), "in combine: returns r of shape [C, 1], but it must be of shape [1]"),
        (InPlace(), "in combine: changes its input rows.w in place (add_)"),
        (Elsewhere(), "in Elsewhere: rows names 'q', which is not in up"),
        (Mixed(), "in personal: a client of several at once, [C, P], is not what it is alone, [P]"),
        (Named(), "in personal: returns a Vectors, but must return a tensor"),
    ],
    ids=lambda v: type(v).__name__ if not isinstance(v, str) else "",
)
def test_what_is_wrong_is_said(method: Median | Ditto, says: str) -> None:
    (found,) = findings(method)
    assert says in found


@pytest.mark.parametrize("name", ["Numbers", "Stretched", "Median", "Ditto", "Heads"])
def test_sound_methods_are_left_alone(name: str) -> None:
    assert findings(getattr(kinds, name)()) == findings(Nearest()) == []


@pytest.mark.parametrize("name", ["Stretched", "Ditto", "Heads"])
def test_every_vector_matters_also_if_for_a_personal_model_alone(name: str) -> None:
    assert check_algorithm(getattr(kinds, name)()) == []


class Scratch(FedAvg):
    """Makes a tensor without a device and forgets it: what it returns may lie where that one was."""

    def finish(self, w, down, me, rnd):
        torch.zeros(w.shape, dtype=w.dtype)
        return me, Vectors(w=w * 1.0)


def test_memory_that_is_used_again_is_not_taken_for_what_lay_there() -> None:
    assert findings(Scratch(), Scale(size=50_000)) == []


class Sketched(FedAvg):
    """Clients keep and send four numbers beside the model."""

    own = ("s",)
    up = ("w", "s")
    sizes = {"s": 4}

    def finish(self, w, down, me, rnd):
        new = (w - down.w)[..., :4].abs()
        return me.replace(s=new), Vectors(w=w, s=new + me.s.sum(-1, keepdim=True))

    def aggregate(self, srv, mean, rnd):
        return Vectors(w=mean.w + mean.s.mean(-1, keepdim=True))


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"s": 0}, "sizes: 's' has 0 numbers, but must have a whole number of them, 1 or more"),
        ({"s": 2.5}, "sizes: 's' has 2.5 numbers"),
        ({"s": 4, "t": 3}, "sizes names 't', which no other declaration does"),
        ({"s": 4, "w": 3}, "the model, 'w', has the size that it has"),
        (("s",), "sizes is ('s',), but must map names to numbers, such as {\"s\": 8}"),
        ({"s": 2}, "in finish: returns s of shape [4], but it must be of shape [2]"),
    ],
    ids=str,
)
def test_sizes_are_checked(sizes, says: str) -> None:
    wrong = dataclass(frozen=True)(type("Sketched", (Sketched,), {"sizes": sizes}))()
    assert any(says in str(note) for note in findings(wrong, Scale(size=50))), findings(wrong, Scale(size=50))


def test_a_method_with_a_vector_of_its_own_size_keeps_the_contract() -> None:
    check_algorithm(Sketched())
    both = dataclass(frozen=True)(type("Sketched", (Sketched,), {"scalars": ("s",)}))()
    assert any("sizes names 's', which scalars says is one number" in str(n) for n in findings(both))


class Masked(FedAvg):
    """Made for models of 50 numbers."""

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=torch.where(torch.arange(50) < 25, w, down.w))


def test_a_method_made_for_a_model_waits_for_it() -> None:
    (found,) = findings(Masked())
    assert "RuntimeError" in found
    refuse_unsound(Masked())  # nothing is known of the model yet
    with pytest.raises(FedsmooError, match="RuntimeError"):
        refuse_unsound(Masked(), Scale(size=51))
    refuse_unsound(Masked(), Scale(size=50))
