"""Local optimisers against ``torch.optim``, one client and one round; rates within a round against their formulas."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

import fedsmoo
from fedsmoo import SCAFFOLD, FedAvg, FedCM, FedsmooError, Vectors
from fedsmoo.algorithms.optimisers import Adam, AdamW, Momentum, Nesterov
from fedsmoo.algorithms.rates import Cosine, Linear, LocalRate
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.runs.build import assemble
from fedsmoo.runs.origin.identity import identity
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.sweeps.pack import Pack, assemble_pack, packable

ONE = {
    "model": "softmax", "clients": 1, "cohort": 1, "rounds": 1, "local_steps": 7, "batch_size": 20, "dtype": "float64",
    "device": "cpu", "partition": "iid", "clip": None, "lr": 0.05, "weight_decay": 0.02, "algorithm": "fedavg",
}  # fmt: skip
MADE = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.02),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.02),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.02),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.02),
}


def by_torch(make, rounds: int = 1, rates=None, fresh: bool = True) -> torch.Tensor:
    """The softmax model of ``ONE`` after its rounds, by an optimiser of PyTorch's on the same batches."""
    run = assemble(make_config(ONE, {"rounds": rounds}))
    data, w = run.setup.task.data, run.server.w.clone()
    shape = run.setup.task.model.layout
    parts = {n: v.clone().requires_grad_() for n, v in shape.split(w).items()}
    optimiser = make(list(parts.values()))
    for number in range(rounds):
        if fresh:
            optimiser = make(list(parts.values()))
        lr = 0.05 * 0.998**number
        plan = run.plan(number, [0])
        for k, rows in enumerate(plan.index[:, 0]):
            for group in optimiser.param_groups:
                group["lr"] = lr * (1 if rates is None else rates[k])
            out = run.setup.task.model.forward(parts, run.setup.task.inputs(data.x_train[rows]))
            optimiser.zero_grad()
            F.cross_entropy(out, data.y_train[rows]).backward()
            optimiser.step()
    return shape.join({n: v.detach() for n, v in parts.items()})


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("name", MADE)
def test_a_round_is_that_of_torch_optim(name, engine):
    found = assemble(make_config(ONE, {"local_optimizer": name, "engine": engine})).run().server.w
    assert float((found - by_torch(MADE[name])).abs().max()) < 1e-12


@pytest.mark.parametrize("state", ["round", "stays"])
@pytest.mark.parametrize("name", MADE)
def test_what_it_remembers_lives_for_a_round_or_stays(name, state):
    """One client: a state that stays is that of one optimiser over all rounds."""
    found = assemble(make_config(ONE, {"local_optimizer": name, "state": state, "rounds": 3})).run().server.w
    kept, fresh = (by_torch(MADE[name], rounds=3, fresh=f) for f in (False, True))
    assert float((found - (kept if state == "stays" else fresh)).abs().max()) < 1e-12
    assert float((kept - fresh).abs().max()) > 1e-4


def test_options_reach_the_optimiser():
    settings = {"local_optimizer": "adam", "local_optimizer.beta1": "0.5", "beta2": "0.9", "eps": "1e-3"}
    found = assemble(make_config(ONE, settings)).run().server.w
    want = by_torch(lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.02, betas=(0.5, 0.9), eps=1e-3))
    assert float((found - want).abs().max()) < 1e-12


RATES = {
    "linear": ({"end": 0.2}, [1 - 0.8 * k / 7 for k in range(7)]),
    "cosine": ({"end": 0.2}, [0.2 + 0.4 * (1 + math.cos(math.pi * k / 7)) for k in range(7)]),
    "cyclic": ({"end": 0.2, "cycles": 2.0}, [0.2 + 0.8 * abs(1 - 2 * ((2 * k / 7) % 1)) for k in range(7)]),
}


@pytest.mark.parametrize("engine", ["serial", "batched"])
@pytest.mark.parametrize("optimizer", ["sgd", "nesterov"])
@pytest.mark.parametrize("name", RATES)
def test_rates_within_a_round_are_their_formulas(name, optimizer, engine):
    options, rates = RATES[name]
    config = make_config(ONE, {"local_schedule": name, "local_optimizer": optimizer, "engine": engine, **options})
    plain = lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.02)  # noqa: E731
    make = plain if optimizer == "sgd" else MADE["nesterov"]
    assert float((assemble(config).run().server.w - by_torch(make, rates=rates)).abs().max()) < 1e-12


class Half(LocalRate):
    """Half of the learning rate, always."""

    def share(self, t):
        return torch.full_like(t, (0.5 - self.end) / (1 - self.end))


@pytest.mark.parametrize("method", [SCAFFOLD(), FedCM(alpha=0.3)], ids=lambda m: m.label)
def test_methods_that_divide_by_the_learning_rate_divide_by_the_sum_of_rates(method):
    """With half of the rate in every step, the run is that with half of the learning rate."""
    many = {**ONE, "clients": 6, "cohort": 3, "rounds": 4, "partition": "dirichlet", "u": 0.3, "local_steps": None}
    whole = assemble(make_config(many, {"lr": 0.025}), algorithm=method).run().server.w
    halved = assemble(make_config(many, {"lr": 0.05}), algorithm=Half(method)).run().server.w
    assert float((halved - whole).abs().max()) < 1e-12


@dataclass(frozen=True)
class Beside(FedAvg):
    """Keeps a model of its own, which it trains by the learning rate of the step."""

    local = ("v",)

    def direction(self, w, grad, down, me):
        return grad(w), me.replace(v=me.v - grad.rnd.lr * grad(me.v))

    def finish(self, w, down, me, rnd):
        return me, Vectors(w=me.v)


def test_directions_are_told_the_rate_of_their_step():
    many = {**ONE, "clients": 6, "cohort": 3, "rounds": 2, "partition": "dirichlet"}
    whole = assemble(make_config(many, {"lr": 0.025}), algorithm=Beside()).run().server.w
    halved = assemble(make_config(many, {"lr": 0.05}), algorithm=Half(Beside())).run().server.w
    assert float((halved - whole).abs().max()) < 1e-12


def test_a_choice_is_part_of_a_run_and_its_default_is_not():
    plain, other = make_config(ONE), make_config(ONE, {"local_optimizer": "adam", "beta1": 0.9})
    assert identity(plain) == identity(make_config(ONE, {"local_optimizer": "sgd", "local_schedule": "constant"}))
    assert identity(other) == identity(make_config(ONE, {"local_optimizer": "adam"})) != identity(plain)
    assert identity(make_config(ONE, {"local_optimizer": "adam", "beta1": 0.8})) != identity(other)
    assert identity(make_config(ONE, {"local_schedule": "cosine"})) != identity(plain)
    assert "local_optimizer" not in plain.to_dict()
    assert assemble(make_config(ONE, {"local_optimizer": "adamw"})).setup.algorithm.label == "FedAvg+adamw"


def test_runs_with_other_numbers_of_an_optimiser_share_a_batch():
    many = {**ONE, "clients": 6, "cohort": 3, "rounds": 2, "partition": "dirichlet", "engine": "batched"}
    choices = [{"beta1": 0.5}, {"beta1": "linear:0.5:0.9:2", "weight_decay": 0.1}, {"seed": 3}]
    configs = [make_config(many, {"local_optimizer": "adamw", "local_schedule": "cosine", **c}) for c in choices]
    assert packable(configs)
    assert not packable([configs[0], make_config(many, {"local_optimizer": "adam", "local_schedule": "cosine"})])
    alone = [assemble(c).run().server.w for c in configs]
    together = [r.server.w for r in Pack(assemble_pack(configs)).run()]
    assert max(float((a - b).abs().max()) for a, b in zip(alone, together, strict=True)) < 1e-12
    assert float((alone[0] - alone[1]).abs().max()) > 1e-6


OWN = """
from dataclasses import dataclass
from fedsmoo import Around, option

@dataclass(frozen=True)
class Sign(Around):
    by: float = option(1.0, "how far", within="(0, inf)")

    def update(self, w, d, me, rnd):
        return self.inner.update(w, self.by * d.sign(), me, rnd)
"""


def test_an_optimiser_of_ones_own(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    spec = f"{tmp_path / 'mine.py'}:Sign"
    config = make_config(ONE, {"local_optimizer": spec, "by": 0.1, "local_steps": 1})
    run = assemble(config)
    before = run.server.w.clone()
    moved = (run.run().server.w - before).abs()
    assert torch.allclose(moved[moved > 0], torch.full_like(moved[moved > 0], 0.05 * 0.1))
    first = identity(config)
    (tmp_path / "mine.py").write_text(OWN + "# edited\n")
    assert identity(config) != first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_optimizer": "adm"}, "did you mean 'adam'"),
        ({"local_optimizer": "adam", "momentum": 0.9}, "unknown setting 'momentum'"),
        ({"local_optimizer": "momentum", "momentum": 1.5}, "momentum is 1.5, but must be at least 0 and below 1"),
        ({"local_optimizer": "momentum", "state": "forever"}, "unknown value of state 'forever'"),
        ({"local_schedule": "cosine", "end": -1}, "end is -1.0, but must be at least 0"),
        ({"local_optimizer_options": {"momentum": 0.9}}, "local_optimizer 'sgd' has no options"),
        ({"local_optimizer": "adamw", "local_optimizer_options": {"weight_decay": 1}}, "set weight_decay instead"),
    ],
)
def test_slips_are_refused(settings, message):
    with pytest.raises(FedsmooError, match=message):
        assemble(make_config(ONE, settings))


def test_wrappers_by_hand():
    """In Python they are put around a method; the later one is outside."""
    for made in (Momentum, Nesterov, Adam, AdamW, Linear, Cosine):
        assert made(FedAvg()).inner == FedAvg()
    assert Cosine(Momentum(FedAvg())).label == "FedAvg+momentum+cosine"
    assert Momentum(SCAFFOLD(), state="stays").own == ("c", "opt_m")


@pytest.mark.parametrize("method", ["scaffold", "fedcm", "mofedsam", "fedgamma", "feddc", "fedmoswa", "fedwmsam"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_methods_that_take_a_way_for_gradients_say_that_an_optimiser_s_is_none(method, optimizer):
    small = {"clients": 3, "cohort": 2, "rounds": 1, "local_steps": 1, "device": "cpu"}
    with pytest.warns(FedsmooWarning, match=f"for a mean gradient, which steps of {optimizer} do not make it: it will"):
        fedsmoo.simulate("softmax", "digits", method, local_optimizer=optimizer, **small)


def test_other_methods_do_not_and_no_momentum_is_none():
    small = {"clients": 3, "cohort": 2, "rounds": 1, "local_steps": 1, "device": "cpu"}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedsmooWarning)
        for method in ("fedavg", "feddyn", "fedsmoo"):
            fedsmoo.simulate("softmax", "digits", method, local_optimizer="adam", **small)
        fedsmoo.simulate("softmax", "digits", "scaffold", local_optimizer="momentum", momentum=0.0, **small)
    with pytest.warns(FedsmooWarning, match="FedCM takes .* steps of nesterov"):
        fedsmoo.simulate("softmax", "digits", Nesterov(FedCM()), **small)
