"""A step cut into generated passes is the step: every method, in float64, against the eager steps."""

from __future__ import annotations

import importlib.util
import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import kinds
import pytest
import torch
from algorithms.variants import SAME_STEPS, STRONG
from engines.opaque import RoundedToFloat
from engines.small import largest_gap, simulation, trace
from engines.told import KINDS
from torch.utils._python_dispatch import _disable_current_modes

from fedsmoo.algorithms import FedAvg, FedBN, FedDyn, FedLESAMS, FedSMOO, Relaxed
from fedsmoo.compiler.round_end import CompiledRoundEnd
from fedsmoo.compiler.schedule import LastPass, PointPass, SumPass, TakeGradient, schedule
from fedsmoo.core import Algorithm, LocalRule, Round, Schedule, Vectors, norm, option
from fedsmoo.core.contract.check import AT_A_CLIENT
from fedsmoo.core.user_code import user_object
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.steps.eager import EagerStepper
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.steps.stack import stack
from fedsmoo.engines.steps.stepper import Assignment, DevicePlan

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="in float64, by the interpreter")


@dataclass(frozen=True)
class Momentum(FedAvg):
    """The clip hangs on a vector that the step overwrites, so nothing may be taken for one."""

    local: ClassVar[tuple[str, ...]] = ("m",)

    def direction(self, w, grad, down, me):
        m = 0.9 * me.m + grad(w)
        return m, me.replace(m=m)


@dataclass(frozen=True)
class Chain(FedAvg):
    """Two vectors of which each needs the other's value before the step, and the second gradient the first."""

    local: ClassVar[tuple[str, ...]] = ("a", "b")

    def direction(self, w, grad, down, me):
        g = grad(w)
        a, b = me.b + g / (1 + norm(g)), 0.5 * me.a - g
        return grad(w + 0.1 * a) + 0.1 * me.a, me.replace(a=a, b=b)


@dataclass(frozen=True)
class Trade(FedAvg):
    """Vectors that take each other's places, or the weights': all must be read before any is written."""

    kind: str = "swap"
    local: ClassVar[tuple[str, ...]] = ("a", "b")

    def direction(self, w, grad, down, me):
        g = grad(w)
        if self.kind == "swap":
            return g, me.replace(a=me.b + g, b=0.5 * me.a - 2 * g)
        if self.kind == "shift":
            return g, me.replace(a=g, b=me.a)
        if self.kind == "weights":
            return g, me.replace(a=w, b=me.a)
        if self.kind == "sent":
            return g + me.b, me.replace(a=down.w, b=0.1 * me.a)
        if self.kind == "three gradients":
            return grad(w + 0.3 * me.a) + grad(down.w + 0.1 * g), me.replace(a=g, b=me.a)
        if self.kind == "truths":
            return torch.where(g > 0, g, 2 * g) + (w > 0) * g, me.replace(a=(g > w) * w)
        return grad(w + 0.3 * me.a), me.replace(a=g)

    def finish(self, w, down, me, rnd):
        return me, super().finish(w + 0.1 * me.a + 0.01 * me.b, down, me, rnd)[1]


@dataclass(frozen=True)
class Cut(FedAvg):
    """A factor of the method's own, clamped at one, although the rule clips nothing."""

    def direction(self, w, grad, down, me):
        g = grad(w)
        return g * (0.5 / norm(g)).clamp(max=1.0), me


@dataclass(frozen=True)
class CutEach(FedAvg):
    """A factor for each weight, clamped at one: none may be taken for one, since a client is done again as a whole."""

    def pull(self, w, down):
        way = w - down.w
        return way * (10 * way.abs() / (0.01 + norm(way))).clamp(max=1.0)


@dataclass(frozen=True)
class Along(FedAvg):
    """A plain sum, which is negative for some: how far the gradient points along the way that a client has come."""

    def direction(self, w, grad, down, me):
        g, way = grad(w), w - down.w + 0.1
        return g - 0.05 * (g * way).sum(-1, keepdim=True) * way, me


@dataclass(frozen=True)
class Beyond(FedAvg):
    """Arithmetic that passes do not know, or would get wrong."""

    kind: str = "sorted"

    def direction(self, w, grad, down, me):
        g = grad(w)
        if self.kind == "summed up":
            return g.cumsum(-1) * 1e-3, me
        if self.kind == "rows":  # five numbers that are none of the clients'
            return (g.view(len(g), 5, -1) * torch.linspace(0, 1, 5, dtype=g.dtype)[:, None]).view(g.shape), me
        if self.kind == "rounded":
            return g.float().double(), me
        if self.kind == "random":  # drawn in every step, not once in a round
            return g + 0 * torch.rand_like(down.w), me
        if self.kind == "in place":
            g = g + 0
            g.view(g.shape).mul_(2)
            return g, me
        if self.kind == "unused":  # but its loss is the step's
            return grad(w + 0.1 * down.w), me
        if self.kind == "loss":
            return g * (1 + grad.losses[0].unsqueeze(-1)), me
        if self.kind == "or":
            return torch.where((g > 0) + (w > 0), g, 2 * g), me
        return g * norm(norm(g)), me


@dataclass(frozen=True)
class Flat(FedAvg):
    def direction(self, w, grad, down, me):
        return grad(w).flatten().view(w.shape), me


@dataclass(frozen=True)
class Looking(FedAvg):
    """``finish`` looks at a number."""

    def finish(self, w, down, me, rnd):
        return super().finish(w * (0.5 if float(rnd.lr) > 0.1 else 1.0), down, me, rnd)


METHODS: dict[str, Algorithm] = {
    **{name: method for name, method in STRONG.items() if name not in SAME_STEPS},
    "fedbn": FedBN(norms="*bias"),  # this network has no norms
    "relaxed-fedsmoo": Relaxed(FedSMOO(r=0.2, beta=2.0), 0.3),
    "relaxed-fedlesam-s": Relaxed(FedLESAMS(rho=0.2), 0.3),
    "momentum": Momentum(),
    "chain": Chain(),
    "cut": Cut(),
    "cut each": CutEach(),
    "along": Along(),
    **{kind: Trade(kind=kind) for kind in ("swap", "shift", "weights", "sent", "three gradients", "truths", "point")},
}
TOLERANCE = 1e-7  # a last bit in float64 may decide how a weight is rounded to float32
BEYOND = ["summed up", "rows", "rounded", "random", "norm of a norm", "in place", "unused", "loss", "or"]
EQUAL = {"cohort": 2, "sampling": "uniform", "local_epochs": None, "local_steps": 3, "rounds": 2}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Vectors of 285 numbers have two blocks then, also in the loop that does clients again."""
    if importlib.util.find_spec("triton"):
        monkeypatch.setattr("fedsmoo.compiler.codegen.BLOCK", 256)
        monkeypatch.setattr("fedsmoo.compiler.codegen.FEW", 1)


def run(method: Algorithm, passes: bool, groups: int = 1, capture: bool = True, **settings):
    def engine(setup: Setup) -> Batched:
        stepper = partial(ReplayStepper, compile=False, capture=capture, groups=groups) if passes else EagerStepper
        return Batched(setup, oracle=RoundedToFloat(setup.task), stepper=stepper)

    return simulation(engine, "mlp", method, **settings)


def compared(name: str | Algorithm, **settings):
    method = METHODS[name] if isinstance(name, str) else name
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "the local step")
        eager, passed = (run(method, p, **settings) for p in (False, True))
        assert largest_gap(trace(eager), trace(passed)) < TOLERANCE
    return passed.engine.stepper


# Losses of their own need the model's outputs, which kernels do not give; a number that is sent down needs the whole
# step, and a power of a number the end as it is written.
WHOLE, POWERS = {"fedlc", "fedntd", "fedgmt", "moon", "fedwmsam"}, {"qfedavg"}


@pytest.mark.parametrize("name", [name for name in METHODS if name not in WHOLE])
def test_clients_of_one_length(name, device):
    """Nothing is masked; an odd number of steps; what no step reads is written by the last one only."""
    steps = compared(name, **EQUAL)
    assert [r.cut for r in steps.recordings.values()] == [True]
    assert all(steps.endings.values()) == (name not in POWERS)


IN_PASSES = ["step", "point of the step", "two points of the step", "facts in passes", "momentum"]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", IN_PASSES)
def test_the_step_and_the_facts_of_a_client(name, groups, device):
    """The number of the step moves with the steps, also in the point that lies ready for the next one."""
    steps = compared(KINDS[name], groups=groups, **EQUAL | {"rounds": 3, "local_steps": 4})
    assert all(r.cut for r in steps.recordings.values())
    assert all(steps.endings.values())
    assert largest_gap(*(trace(run(m, False, **EQUAL)) for m in (KINDS[name], FedAvg()))) > 1e-5


@pytest.mark.parametrize("name", ["step", "two points of the step", "facts in passes"])
def test_steps_and_facts_of_unequal_clients(name, device):
    compared(KINDS[name], groups=2, rounds=3, local_epochs=1)


MOVING: dict[str, Algorithm] = {
    "fedsmoo": FedSMOO(r=Schedule(0.02, 0.3, 2), beta=Schedule(8.0, 1.0, 2, "exponential")),
    "inside": Relaxed(FedSMOO(r=Schedule(0.3, 0.0, 3), beta=2.0), Schedule(0.4, steps={1: 0.1})),
    "in the end": FedDyn(beta=Schedule(8.0, 1.0, 2)),
}


@pytest.mark.parametrize("settings", [EQUAL | {"rounds": 3}, {"rounds": 4, "local_epochs": 1, "groups": 2}])
@pytest.mark.parametrize("name", MOVING)
def test_numbers_that_move_are_read_from_memory(name, settings, device):
    """A recorded step, what is constant in a round, and a recorded end: none has the first round's numbers built in."""
    steps = compared(MOVING[name], **settings)
    assert all(r.cut for r in steps.recordings.values())
    assert all(steps.endings.values())
    moving, still = (trace(run(method, False, **settings)) for method in (MOVING[name], MOVING[name].at(0)))
    assert largest_gap(moving, still) > 1e-3


@pytest.mark.parametrize("name", ["facts", "adam"])
def test_counts_of_classes_and_powers_are_beyond_the_passes(name, device):
    steps = compared(KINDS[name], **EQUAL)
    assert [r.cut for r in steps.recordings.values()] == [False]


@dataclass(frozen=True)
class Warm(FedAvg):
    """Single numbers that a step only reads: one for all clients, and one of each."""

    down: ClassVar[tuple[str, ...]] = ("w", "t")
    own: ClassVar[tuple[str, ...]] = ("v",)
    scalars: ClassVar[tuple[str, ...]] = ("t", "v")

    def direction(self, w, grad, down, me):
        return (1 + down.t) * grad(w) + 0.1 * me.v * w, me

    def finish(self, w, down, me, rnd):
        return me.replace(v=me.v + norm(w - down.w)), super().finish(w, down, me, rnd)[1]

    def aggregate(self, srv, mean, rnd):
        return super().aggregate(srv, mean, rnd).replace(t=srv.t + 0.3)


# A method of each kind; whether passes express its steps, and its end, which may have a number or wait for a norm.
EACH = {
    "warm": (Warm(), True, True),
    "numbers": (kinds.Numbers(), False, True),
    "stretched": (kinds.Stretched(), True, True),
    "median": (kinds.Median(), True, True),
    "ditto": (kinds.Ditto(), True, True),
    "heads": (kinds.Heads(), True, True),
}


@pytest.mark.parametrize("name", EACH)
def test_numbers_rows_parts_and_personal_models(name, device):
    method, cut, end = EACH[name]
    steps = compared(method, **EQUAL | {"rounds": 3})
    assert [r.cut for r in steps.recordings.values()] == [cut]
    assert [e is not None for e in steps.endings.values()] == [end]


@dataclass(frozen=True)
class Bounded(FedAvg):
    """An end that waits for a norm, then for the norm of what that made; its numbers are kept and sent."""

    own: ClassVar[tuple[str, ...]] = ("e", "far")
    up: ClassVar[tuple[str, ...]] = ("w", "u", "k", "both")
    scalars: ClassVar[tuple[str, ...]] = ("far", "k", "both")

    def finish(self, w, down, me, rnd):
        d = w - down.w + me.e
        u = d * (0.05 / norm(d)).clamp(max=1)
        cut = u / (1 + norm(u - 0.1 * d))
        both = norm(cut) * (d * w).sum(-1, keepdim=True) / rnd.steps
        return me.replace(e=d - cut, far=me.far + norm(d) ** 2), Vectors(w=w, u=cut, k=3.0, both=both)

    def aggregate(self, srv, mean, rnd):
        return srv.replace(w=srv.w + mean.u * (1 + 0.1 * mean.k + 0.01 * mean.both))


ENDS = {**{n: METHODS[n] for n in ("fedavg", "scaffold", "fedexp", "fednova", "fedwmsam")}, "bounded": Bounded()}


@pytest.mark.parametrize("name", ENDS)
def test_an_end_that_waits_for_norms_is_the_eager_one(name, device):
    """To 1e-12 in float64: what is kept, what is sent and the drift, for clients with numbers of steps of their own."""
    method, g = ENDS[name], torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    w = drawn(4, 285)
    down = Vectors(**{n: drawn(method.length(n, 285)) for n in method.down})
    me = Vectors(**{n: drawn(4, method.length(n, 285)) for n in (*method.own, *method.local)})
    facts = {"client": drawn(4, 1), "samples": drawn(4, 1).abs(), "loss": drawn(4, 1).abs()}
    rnd = Round(2, 0.1, torch.tensor([[3.0], [1.0], [4.0], [2.0]], dtype=torch.float64), 0.5, **facts)
    compiled = CompiledRoundEnd(method, w, down, me, rnd)
    assert name != "fedexp" or len(compiled.passes) == 1, "a sum, and nothing that would have to be written"
    ours = compiled(w, down, me, rnd)
    theirs = EagerStepper(SimpleNamespace()).end(Assignment(method, LocalRule(), down, rnd), w, me)
    for mine, plain in zip((*ours[:2], Vectors(drift=ours[2])), (*theirs[:2], Vectors(drift=theirs[2])), strict=True):
        assert mine.names() == plain.names()
        for n, v in plain.items():
            assert getattr(mine, n).shape == v.shape, n
            torch.testing.assert_close(getattr(mine, n), v, rtol=1e-12, atol=1e-12)


def test_what_no_step_reads_of_a_round_is_neither_loaded_nor_filled(device):
    """FedAvg reads the learning rate alone."""
    for name, expected in (("fedavg", {"lr"}), ("step", {"lr", "step", "steps"})):
        made = run({**METHODS, **KINDS}[name], True, **EQUAL)
        made.advance()
        (recording,) = made.engine.stepper.recordings.values()
        group = recording.groups[0]
        assert group.read == expected
        untouched = {n for n, v in group.given.rnd.tensors().items() if bool((v == 1).all())}
        assert {"samples", "client", "labels"} <= untouched
        assert (float(group.feeds[1].step) > 0) == ("step" in expected)


@pytest.mark.parametrize("name", ["fedavg", "fedsmoo", "fedlesam-d", "chain"])
def test_unequal_clients_in_groups_of_their_own(name, device):
    """Bernoulli cohorts, short batches, clients that have ended; two groups, one of which may hold padding."""
    steps = compared(name, groups=2, rounds=3, local_epochs=1)
    assert all(r.cut for r in steps.recordings.values())


RULES = {
    "none": {"clip": None},
    "released": {"clip": 1.0, "scope": "released"},
    "all": {"clip": 1e-3},
    "no": {"clip": 1e3},
}
UNDER = {"fedprox": ["none", "all"], "fedsmoo": [*RULES], "cut": ["none", "released"], "cut each": ["none", "no"]}


@pytest.mark.parametrize(("name", "rule"), [(name, rule) for name, rules in UNDER.items() for rule in rules])
def test_rules_of_a_step(name, rule, device):
    compared(name, rule=RULES[rule], **EQUAL)


def test_what_is_left_out_has_the_steps_of_another() -> None:
    def step(method: Algorithm) -> list[object]:
        functions = [getattr(type(method), f) for f in ("first_contact", *AT_A_CLIENT)]
        return [*functions, method.down, method.own, method.local, method.up, method.scalars]

    assert all(step(STRONG[name]) in (step(STRONG["fedavg"]), step(STRONG["median"])) for name in SAME_STEPS)


def test_a_clip_binds_for_some_clients_and_not_for_others(device):
    """Else the tests above would not see a client done again beside one that is not."""
    made = run(METHODS["fedavg"], True, **EQUAL)
    made.advance()
    (recording,) = made.engine.stepper.recordings.values()
    norms = recording.groups[0].passes.tensors["sums"][0].sqrt()
    limit = float(norms.mean())
    assert norms.min() < limit < norms.max()
    compared("fedavg", rule={"clip": limit}, **EQUAL)


def test_the_next_point_lies_ready_in_the_kernels_type(device):
    """Rounded once, as PyTorch rounds; the last weights also as they are."""
    made = run(METHODS["fedavg"], True, **EQUAL | {"local_steps": 2})
    made.advance()
    (recording,) = made.engine.stepper.recordings.values()
    group, begin = recording.groups[0], made.engine.oracle.begin
    weights, point = group.rows.w, group.passes.tensors
    assert weights.dtype == torch.float64
    assert point["working"].dtype == torch.float32
    assert torch.equal(point["working"][:, :begin], weights[:, :begin].float())
    assert torch.equal(point["fine"], weights[:, begin:])


@pytest.mark.parametrize("kind", BEYOND)
def test_beyond_the_passes(kind, device):
    steps = compared(Beyond(kind=kind), **EQUAL)
    assert [r.cut for r in steps.recordings.values()] == [False]


def test_a_finish_that_looks_at_numbers(device):
    with pytest.warns(RuntimeWarning, match="the end of a round cannot be one pass and runs slower"):
        steps = compared(Looking(), **EQUAL)
    assert [r.cut for r in steps.recordings.values()] == [True]
    assert list(steps.endings.values()) == [None]


@dataclass(frozen=True)
class Seeing(FedAvg):
    """A number that moves, looked at: where one client steps alone, its memory holds one number that can be."""

    r: float = option(0.1, "a number")

    def direction(self, w, grad, down, me):
        return grad(w) * float(self.r), me

    def finish(self, w, down, me, rnd):
        return super().finish(w * math.exp(-self.r), down, me, rnd)


def test_a_number_that_moves_is_not_built_in_where_one_client_shows_it(device):
    settings = EQUAL | {"cohort": 1, "rounds": 3}
    method = Seeing(r=Schedule(0.5, 0.1, 3))
    eager = run(method, False, **settings)
    passed = run(method, True, **settings)
    with pytest.warns(RuntimeWarning, match="looks at a number"):
        found = trace(passed)
    assert largest_gap(trace(eager), found) < TOLERANCE
    assert [r.cut for r in passed.engine.stepper.recordings.values()] == [False]
    assert list(passed.engine.stepper.endings.values()) == [None]


@pytest.mark.parametrize("kind", ["swap", "three gradients"])
def test_steps_that_were_never_recorded_end_the_same(kind, device):
    """Vectors that live one round are then still one zero, spread over all clients."""
    eager, neither = (run(Trade(kind=kind), p, capture=False, **EQUAL) for p in (False, True))
    assert largest_gap(trace(eager), trace(neither)) < TOLERANCE
    assert all(neither.engine.stepper.endings.values())


def test_groups_are_cut_all_or_none(device):
    """Of one client alone, a flattened gradient is a vector; of two it is not."""
    steps = compared(Flat(), groups=2, **EQUAL | {"cohort": 3})
    assert [r.cut for r in steps.recordings.values()] == [False]


def test_numbers_of_each_client(device):
    """Several runs in one batch: r and beta are a number per client, what was sent a vector per client."""
    made = run(METHODS["fedsmoo"], True, **EQUAL)
    work = made.prepare()
    from fedsmoo.core import Round, Vectors

    task, clients = made.setup.task, len(work.clients)
    like = work.down.w
    methods = [FedSMOO(r=0.2, beta=2.0), FedSMOO(r=0.05, beta=7.0)]
    algorithm = stack(methods, [1] * clients, like)
    generator = torch.Generator().manual_seed(0)
    down = work.down.map(lambda v: v + 0.1 * torch.randn(clients, len(v), generator=generator, dtype=v.dtype))
    zeros = torch.zeros_like(down.w)
    me = Vectors(mu=zeros + 0.01, lam=zeros - 0.02, s_hat=zeros)
    lr = torch.tensor([[0.1], [0.3]], dtype=like.dtype)
    given = Assignment(algorithm, made.setup.rule, down, Round(3, lr, torch.full_like(lr, 3.0), 0.5), (1, 2))
    plan = DevicePlan(work.plan, task)
    oracle = RoundedToFloat(task)
    replayed, eager = ReplayStepper(oracle, compile=False, groups=2), EagerStepper(oracle)

    def results(stepper):
        w, mine, total = stepper.steps(given, down.w, me, plan)
        return [total, mine.s_hat, *(v for part in stepper.end(given, w, mine)[:2] for _, v in part.items())]

    found, expected = results(replayed), results(eager)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
    assert all(r.cut for r in replayed.recordings.values())
    assert all(replayed.endings.values())


def actions(method: Algorithm) -> list[type]:
    made = run(method, True, **EQUAL)
    made.advance()
    (recording,) = made.engine.stepper.recordings.values()
    return [type(a) for a in schedule(recording.groups[0].passes.flow)]


def test_how_many_passes_a_step_takes(device):
    """One after the last gradient, with the clip's norm beside it; SAM's perturbation waits for a norm of its own."""
    assert (
        actions(METHODS["fedavg"])
        == actions(METHODS["fedlesam-s"])
        == actions(METHODS["scaffold"])
        == [TakeGradient, LastPass]
    )
    assert actions(METHODS["fedsmoo"]) == [TakeGradient, SumPass, PointPass, TakeGradient, LastPass]
    assert actions(replace(METHODS["fedsmoo"], sam=False)) == [TakeGradient, LastPass]
    assert actions(METHODS["momentum"]) == [TakeGradient, SumPass, LastPass]


def test_a_method_that_holds_a_vector_and_ends_by_an_index(device):
    """The released code's variant of FedSMOO: its steps are passes, its end runs as written."""
    file = Path(__file__).parents[2] / "experiments/released/head_cut.py"
    steps = compared(user_object(f"{file}:HeadCut", "algorithm")(perturbation="released"), **EQUAL)
    assert [r.cut for r in steps.recordings.values()] == [True]
    assert not any(steps.endings.values())


@dataclass(frozen=True)
class Scaled(FedAvg):
    """Steps that are scaled by a vector of the method's own, which is one number seen everywhere, or a column."""

    kind: str = "column"

    def direction(self, w, grad, down, me):
        with _disable_current_modes():  # as if they were there before the step
            pairs = torch.linspace(0.5, 1.5, 2 * w.shape[-1], dtype=torch.float64).view(-1, 2)
            held = {"column": pairs[:, 0], "everywhere": pairs[3, 0].expand(len(pairs)), "row": pairs.mean(1)}
        return held[self.kind] * grad(w), me


@pytest.mark.parametrize("kind", ["column", "everywhere", "row"])
def test_vectors_of_a_method_whose_numbers_lie_apart(kind, device):
    """A pass goes by rows: the step is cut only where numbers follow each other."""
    steps = compared(Scaled(kind=kind), **EQUAL)
    assert [r.cut for r in steps.recordings.values()] == [kind == "row"]
