"""Checks that every method passes, and that a method of your own can be held to.

from fedsmoo.testing import check_algorithm

def test_my_method():
    check_algorithm(MyMethod(rho=0.1))
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, cast

import torch
from torch import Tensor

from fedsmoo.core import Algorithm, FedsmooError, Gradient, LocalRule, Round, Vectors
from fedsmoo.core.blame import in_brief
from fedsmoo.core.contract import findings, inputs
from fedsmoo.core.contract.form import CLIENTS
from fedsmoo.core.contract.inputs import EVERYBODY, FIRST, KEYS
from fedsmoo.core.local import local_end, local_step

STEPS, LR = 2, 0.1
RULE = LocalRule(weight_decay=0.01, clip=2.0)
# Where dependence is looked for: points of several sizes, and pushes of several sizes from each. A clamp, a sign or a
# threshold hides a vector in one place, and not in all.
POINTS = (1.0, 1e-3, 30.0)
PUSHES = (100.0, -100.0, 1.0, 1e-4)


def check_algorithm(algorithm: Algorithm, compiled: bool = True) -> list[str]:
    """Check a method; raise an ``AssertionError`` with a line for each thing that is wrong, all at once.

    The first of them, ``fedsmoo.core.contract.findings``, is what every run of a method of your own begins with.

    Args:
        algorithm: a method with its hyper-parameters.
        compiled: also trace a whole local step, which takes a second.

    Returns:
        What could be better and is not wrong, a line each.
    """
    wrong, notes = undescribed(algorithm)
    wrong = wrong or findings(algorithm)
    if not wrong:
        unread, kept = unused(algorithm)
        wrong, notes = [*unread, *unlike_numbers(algorithm)], notes + kept
        wrong += untraceable(algorithm) if compiled else []
    if wrong:
        raise AssertionError("\n".join(wrong))
    return notes


def undescribed(algorithm: Algorithm) -> tuple[list[str], list[str]]:
    """Find what is undocumented: help beside every field, a box in the docstring, the paper in the module's.

    The latter are notes for a user's method, which may be in no paper yet; what comes with the package has them all.
    """
    cls, label = type(algorithm), type(algorithm).__name__
    if not getattr(getattr(cls, "__dataclass_params__", None), "frozen", False):
        return [f"{label} is not a frozen dataclass: write @dataclass(frozen=True) above it"], []
    named = [f.name for f in dataclasses.fields(cls) if not f.metadata.get("help")]
    notes = [f"{label}.{n} has no help: write option(default, 'its meaning')" for n in named]
    text = "" if cls.__doc__ is None or cls.__doc__.startswith(f"{label}(") else inspect.cleandoc(cls.__doc__)
    if not text.partition("\n")[0].endswith((".", ":")):
        notes.append(f"{label}: the docstring does not open with a sentence")
    if not any(re.match(r"(client|server)\s", line) for line in text.splitlines()):
        notes.append(f"{label}: the docstring has no box (lines that start with 'client' or 'server')")
    paper = (inspect.getmodule(cls).__doc__ if inspect.getmodule(cls) else "") or ""
    if not cls.__module__.startswith("fedsmoo."):
        return [], notes
    if not re.search(r"\b(19|20)\d\d\b", paper):
        notes.append(f"{label}: the module's docstring does not name the paper and its year")
    return notes, []


def unused(algorithm: Algorithm) -> tuple[list[str], list[str]]:
    """Declared vectors that nothing depends on; and, apart, own vectors that only they themselves depend on.

    A client's own vector may be an end in itself, such as a personal model, as long as rounds change it.
    """
    algorithm = generic(algorithm)
    states = [State.make(algorithm, scale) for scale in POINTS]
    wrong: list[str] = []
    notes: list[str] = []
    for place in ("down", "own", "local", "up", "server"):
        for name in getattr(algorithm, place):
            answers = [dependence(algorithm, s, place, name) for s in states]
            if not any(others for others, _ in answers):
                said = f"{algorithm.label}.{place} declares {name!r}, but nothing depends on it"
                lives = any(itself for _, itself in answers)
                (notes if lives else wrong).append(f"{said} but itself: a personal model?" if lives else said)
    return wrong, notes


@dataclasses.dataclass(frozen=True)
class State:
    """A server, what a client was sent and keeps, and what was sent back, in the middle of a run."""

    srv: Vectors
    mean: Vectors
    down: Vectors
    me: Vectors  # own and, for one round, local

    @classmethod
    def make(cls, algorithm: Algorithm, scale: float) -> State:
        a = algorithm

        def some(names: Iterable[str], place: int) -> Vectors:
            return inputs.random_vectors(a, names, place).map(lambda v: scale * v)

        srv = some((*a.down, *a.server), 12)
        srv = Vectors(**{n: v if n == "w" else v.abs() for n, v in srv.items()}, **inputs.make_masks(a))
        return cls(srv, some(a.up, 13), some(a.down, 11).replace(**inputs.make_masks(a)), some((*a.own, *a.local), 14))


def dependence(algorithm: Algorithm, s: State, place: str, name: str) -> tuple[bool, bool]:
    """Whether a push of a vector shows in any other; and whether a round changes it itself."""
    if place in ("up", "server"):
        kept = next_server(algorithm, s.srv, s.mean)
        moved = (
            next_server(algorithm, s.srv, v) if place == "up" else next_server(algorithm, v, s.mean)
            for v in pushed(s.mean if place == "up" else s.srv, name)
        )
        if place == "server":  # it has to reach what is sent, now or, over other vectors, a round later
            return any(differs(reach(algorithm, kept, s), reach(algorithm, m, s)) for m in moved), False
        return any(differs(kept, m) for m in moved), False
    plain = one_round(algorithm, s.down, s.me)
    if place == "down":
        return any(differs(plain, one_round(algorithm, v, s.me)) for v in pushed(s.down, name)), False
    mine = f"own {name}"
    after = (one_round(algorithm, s.down, v) for v in pushed(s.me, name))
    brief = PUSHES if place == "local" else ()  # it may live from a step's direction to its update, or to the end
    late = (one_round(algorithm, s.down, s.me, late=(name, push)) for push in brief)
    within = (one_round(cast("Algorithm", Between(algorithm, name, push)), s.down, s.me) for push in brief)
    others = any(differs(without(plain, mine), without(m, mine)) for vs in (after, late, within) for m in vs)
    return others, place == "own" and not torch.equal(getattr(plain, mine), getattr(s.me, name))


class Between:
    """A method one of whose local vectors is pushed between the direction of a step and its update."""

    def __init__(self, inner: Algorithm, name: str, by: float) -> None:
        self.inner, self.name, self.by = inner, name, by

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def update(self, w: Tensor, d: Tensor, me: Vectors, rnd: Round) -> tuple[Tensor, Vectors]:
        return self.inner.update(w, d, push(me, self.name, self.by), rnd)


def next_server(algorithm: Algorithm, srv: Vectors, mean: Vectors) -> Vectors:
    rnd = Round(1, LR, float(STEPS), 0.5, n=CLIENTS, key=torch.tensor(KEYS[0]))
    return algorithm.aggregate(inputs.guarded(srv), inputs.guarded(mean), rnd)


def reach(algorithm: Algorithm, srv: Vectors, s: State) -> Vectors:
    """Return what a server sends now, and after another round."""
    later = algorithm.sent(next_server(algorithm, srv, s.mean))
    now = {f"now {n}": v for n, v in algorithm.sent(srv).items()}
    return Vectors(**now, **{f"later {n}": v for n, v in later.items()})


def one_round(algorithm: Algorithm, down: Vectors, me: Vectors, late: tuple[str, float] | None = None) -> Vectors:
    """Return what one client sends and keeps; ``late`` changes a local vector before the round ends."""
    kept, up = a_client(algorithm, down, me, steps_of(algorithm, FIRST), late)
    served = algorithm.personal(down, kept)
    mine = {} if served is None else {"the personal model": served}
    return Vectors(**{f"up {n}": v for n, v in up.items()}, **{f"own {n}": v for n, v in kept.items()}, **mine)


def steps_of(algorithm: Algorithm, client: int | None) -> list[Gradient]:
    """Return the ``grad`` of every local step of one client, or of all."""
    return [inputs.make_gradient(algorithm, inputs.make_round(algorithm, client), k, client) for k in range(STEPS)]


def a_client(
    algorithm: Algorithm, down: Vectors, me: Vectors, steps: list[Gradient], late: tuple[str, float] | None = None
) -> tuple[Vectors, Vectors]:
    """Run the round of one client, or of C clients; return their own vectors and what is sent."""
    rnd = steps[-1].rnd
    w = algorithm.start(down, me).expand(*rnd.client.shape[:-1], -1)
    for grad in steps:
        w, me = local_step(algorithm, RULE, w, grad, down, me)
    if late is not None:
        me = push(me, *late)
    return local_end(algorithm, w, down, me, rnd)


def push(v: Vectors, name: str, by: float) -> Vectors:
    """Vectors with one of them moved, in all directions."""
    part = getattr(v, name)
    return v.replace(**{name: part + by * (1 + torch.arange(part.shape[-1], dtype=part.dtype))})


def pushed(v: Vectors, name: str) -> Iterator[Vectors]:
    return (push(v, name, by) for by in PUSHES)


def without(v: Vectors, name: str) -> Vectors:
    return v.pick(tuple(n for n in v.names() if n != name))


def differs(a: Vectors, b: Vectors) -> bool:
    return any(not torch.equal(v, getattr(b, n)) for n, v in a.items())


def unlike_numbers(algorithm: Algorithm) -> list[str]:
    """Check that with hyper-parameters as ``[C, 1]`` tensors, of several runs in a batch, each row is its own run."""
    each = [scaled(algorithm, by) for by in (1.0, 0.9, 0.8)]
    me = inputs.random_vectors(algorithm, (*algorithm.own, *algorithm.local), 4, CLIENTS)
    down = inputs.random_vectors(algorithm, algorithm.down, 1).replace(**inputs.make_masks(algorithm))
    text = f"{algorithm.label}: with hyper-parameters of shape [C, 1], as when several runs share a batch,"
    try:
        together = a_client(stacked(each), down, me, steps_of(algorithm, EVERYBODY))
    except (RuntimeError, TypeError, ValueError) as e:
        return [f"{text} it fails: {in_brief(e)}"]
    for c, one in enumerate(each):
        alone = a_client(one, down, me.map(itemgetter(c)), steps_of(algorithm, c))
        if found := unlike(together, alone, c):
            return [f"{text} run {c} differs: {found}"]
    return []


def untraceable(algorithm: Algorithm) -> list[str]:
    """Check that a client's round, of one step, is one graph under ``torch.compile``, with the same numbers."""
    me = inputs.random_vectors(algorithm, (*algorithm.own, *algorithm.local), 4, CLIENTS)
    down = inputs.random_vectors(algorithm, algorithm.down, 1).replace(**inputs.make_masks(algorithm))
    steps = steps_of(algorithm, EVERYBODY)[:1]  # each is traced anew, and takes as long

    def a_round(down: Vectors, me: Vectors) -> tuple[Vectors, Vectors]:
        return a_client(algorithm, down, me, steps)

    torch.compiler.reset()
    try:
        traced = torch.compile(a_round, fullgraph=True, backend="eager")(down, me)
    except Exception as e:
        return [f"{algorithm.label} does not trace into one graph: {in_brief(e)}"]
    finally:
        torch.compiler.reset()
    found = unlike(traced, a_round(down, me))
    return [f"{algorithm.label}: compiled and plain rounds differ: {found}"] if found else []


def unlike(got: Iterable[Vectors], expected: Iterable[Vectors], row: int | None = None) -> str:
    """Say which vector is not as expected, and by how much; empty if all are."""
    for a, b in zip(got, expected, strict=True):
        for name, e in b.items():
            g = getattr(a, name) if row is None else getattr(a, name)[row]
            if g.shape != e.shape:
                return f"{name} has shape {tuple(g.shape)}, not {tuple(e.shape)}"
            gap = float((g - e).masked_fill(g.isnan() & e.isnan(), 0).abs().max())  # roots of numbers drawn at random
            if not gap <= 1e-12 * (1 + float(e.nan_to_num().abs().max())):
                return f"{name} is off by {gap:.1e}"
    return ""


def changed(algorithm: Algorithm, change: Callable[[float], Any]) -> Algorithm:
    """Return the method with its numbers changed, also those of a method inside it, within their ranges."""
    for name, value in algorithm.options().items():
        new = changed(value, change) if isinstance(value, Algorithm) else value
        new = change(value) if isinstance(value, float) else new
        try:
            algorithm = dataclasses.replace(algorithm, **{name: new})
        except FedsmooError:
            continue  # out of its range
    return algorithm


def generic(algorithm: Algorithm) -> Algorithm:
    """Return the method with numbers other than 0 and 1, which may switch terms off, as alpha = 1 does in FedCM."""
    return changed(algorithm, lambda v: {0.0: 0.5, 1.0: 0.9}.get(v, v))


def scaled(algorithm: Algorithm, by: float) -> Algorithm:
    return changed(algorithm, lambda v: v * by)


def stacked(each: list[Any]) -> Any:
    """Return one method whose numbers are those of several, ``[C, 1]``."""
    options = {}
    for name, value in each[0].options().items():
        values = [getattr(one, name) for one in each]
        if isinstance(value, Algorithm):
            options[name] = stacked(values)
        elif isinstance(value, float):
            options[name] = torch.tensor(values, dtype=torch.float64)[:, None]
    return dataclasses.replace(each[0], **options)
