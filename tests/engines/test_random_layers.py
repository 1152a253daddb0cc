"""Random layers in a batch of clients: what each client draws is, to the bit, what it draws alone on ``serial``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.algorithms import ALGORITHMS, FedAvg
from fedsmoo.core import Algorithm, FedsmooError, LocalRule
from fedsmoo.core.random.layers import ClientsNoise
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.engines.batched import Batched
from fedsmoo.engines.choose import make_engine
from fedsmoo.engines.contract import Setup
from fedsmoo.engines.oracles.drawing import sample_axes
from fedsmoo.engines.oracles.layers import forward_of_many, over_clients
from fedsmoo.engines.serial import Serial
from fedsmoo.engines.steps.replay import ReplayStepper
from fedsmoo.engines.task import Task
from fedsmoo.models import FlatModel, make_module
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.runs.resume import reopen
from fedsmoo.runs.run import Run
from fedsmoo.runs.settings.training import Training
from fedsmoo.runs.simulation import Simulation
from fedsmoo.sweeps.pack import Pack, assemble_pack, packable

from .small import SEED, dataset, indices, largest_gap, recorded, trace
from .test_recording import traced  # noqa: F401  a fixture


class Layer(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Scaled(nn.Module):
    """The first numbers of a sample, times weights that are 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(12))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :12] * self.w


class DropPath(nn.Module):
    """Drops whole samples of the branch beside the identity."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x + x.tanh() * x.new_empty(len(x), 1).bernoulli_(0.6) / 0.6


class Attention(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.inner, self.options = nn.MultiheadAttention(4, 2, dropout=0.4), options  # [T, B, 4]

    def forward(self, x: Tensor) -> Tensor:
        h = x.view(-1, 3, 4).transpose(0, 1)
        return self.inner(h, h, h, **self.options)[0].transpose(0, 1).flatten(1)


class Recurrent(nn.Module):
    def __init__(self, layer: type[nn.RNNBase] = nn.LSTM, **options: bool) -> None:
        super().__init__()
        self.inner = layer(4, 4, num_layers=3, dropout=0.4, **options)
        self.first = bool(options.get("batch_first"))

    def forward(self, x: Tensor) -> Tensor:
        h = x.view(-1, 3, 4)
        out = self.inner(h if self.first else h.transpose(0, 1))[0]
        return (out if self.first else out.transpose(0, 1))[..., :4].flatten(1)


def mixed(x: Tensor) -> Tensor:
    """Mixup of features: every sample with another one of its own batch."""
    return 0.7 * x + 0.3 * x[torch.randperm(len(x))]


def filled(x: Tensor) -> Tensor:
    mask = torch.zeros(len(x), 12, dtype=x.dtype)
    mask.bernoulli_(0.5)
    return x * mask


def chosen(x: Tensor) -> Tensor:
    return x * torch.multinomial(x.exp(), 12, replacement=True)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Dropout(0.5),
    "alpha dropout": lambda: nn.AlphaDropout(0.3),
    "channels": lambda: nn.Sequential(nn.Unflatten(1, (3, 2, 2)), nn.Dropout2d(0.4), nn.Flatten()),
    "rrelu": nn.RReLU,
    "rrelu in place": lambda: Layer(lambda x: F.rrelu_(x + 0.0, training=True)),
    "drop path": DropPath,
    "attention": partial(Attention, need_weights=False),
    "attention with weights": Attention,
    "lstm": Recurrent,
    "gru": partial(Recurrent, nn.GRU, batch_first=True, bidirectional=True),
    "rand": lambda: Layer(lambda x: x * torch.rand(len(x), 1)),
    "randn": lambda: Layer(lambda x: x + torch.randn_like(x)),
    "of the weights": lambda: Layer(lambda x: x * torch.rand(12)),
    "randint": lambda: Layer(lambda x: x * torch.randint(3, (len(x), 12))),
    "randperm": lambda: Layer(mixed),
    "filled": lambda: Layer(filled),
    "multinomial": lambda: Layer(chosen),
    "gumbel": lambda: Layer(lambda x: F.gumbel_softmax(x)),
}


def network(name: str) -> nn.Module:
    """Layers after which another one draws: positions in the stream matter."""

    def made() -> nn.Module:
        first = nn.Flatten(), nn.Linear(36, 12), nn.Tanh()
        return nn.Sequential(*first, LAYERS[name](), nn.Dropout(0.25), nn.Linear(12, 3))

    return make_module(made, 0).double()


def setup_of(module: nn.Module, algorithm: Algorithm | None = None) -> Setup:
    task = Task(FlatModel(module), dataset(), torch.device("cpu"), torch.float64)
    return Setup(task, algorithm or FedAvg(), LocalRule(0.01, 1.0))


def simulation(setup: Setup, engine: Callable[..., object], **training: object) -> Simulation:
    """Unequal clients, short batches, cohorts of changing size."""
    settings = {"rounds": 2, "cohort": 3, "sampling": "bernoulli", "local_epochs": 2, "batch_size": 4, "lr": 0.2}
    return Simulation(setup, engine(setup), Training(**settings | {"seed": SEED} | training), indices())  # type: ignore


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_clients_in_one_batch_draws_what_each_client_draws_alone(name: str) -> None:
    """Bit for bit: outputs of a layer without weights are its inputs under its masks. Batches of 5, 3 and 1 samples."""
    exact = name.split()[0] not in ("attention", "lstm", "gru", "gumbel")  # products and sums are rounded otherwise
    data, real = dataset(), (5, 3, 1)
    module = nn.Sequential(Scaled(), LAYERS[name](), nn.Dropout(0.25)).double()
    task = Task(FlatModel(module), data, torch.device("cpu"), torch.float64, loss=lambda out, y: out.sum(1))
    keys, model = [key_of(1, "noise", 2, c) for c in range(3)], task.model
    steps = torch.tensor([4, 0, 7])
    noise = ClientsNoise(torch.tensor(keys), steps, torch.tensor(real), 5, sample_axes(task))
    w, x = model.initial(), data.x_train[:15].unflatten(0, (3, 5))
    model.train()
    with torch.no_grad():
        forward = over_clients(lambda parts, x: forward_of_many(model)(parts, x, noise), model, noise)
        many = forward(model.layout.split(w.expand(3, -1)), x)
        for c, n in enumerate(real):
            alone = model.forward(model.layout.split(w), x[c, :n], Noise(keys[c], int(steps[c])))
            assert torch.equal(many[c, :n] == 0, alone == 0)
            assert torch.allclose(many[c, :n], alone, rtol=1e-12, atol=1e-14)
            assert torch.equal(many[c, :n], alone) or not exact


WHOLE = ("dropout", "alpha dropout", "rrelu", "drop path", "attention", "lstm", "rand", "randperm")


@pytest.mark.parametrize("name", WHOLE)
def test_whole_runs_are_those_of_serial(name: str) -> None:
    setup = setup_of(network(name), ALGORITHMS["fedsmoo"]())
    assert setup.task.model.random
    plain = trace(simulation(setup, Serial))
    assert largest_gap(plain, trace(simulation(setup, Batched))) < 1e-12


def test_samples_that_count_nothing_draw_all_the_same() -> None:
    """They are no padding: what comes behind their numbers stays where it is."""
    data = dataclasses.replace(dataset(), weights=torch.arange(37) % 3.0)
    task = Task(FlatModel(network("dropout")), data, torch.device("cpu"), torch.float64)
    setup = Setup(task, FedAvg(), LocalRule())
    kinds = Serial, Batched, partial(Batched, stepper=recorded)
    plain, *others = (trace(simulation(setup, engine)) for engine in kinds)
    assert max(largest_gap(plain, other) for other in others) < 1e-12


def test_chunks_and_recorded_steps_draw_the_same() -> None:
    """Of a method with a loss of its own, too: all gradients and outputs of a step see the same masks."""
    setup = setup_of(network("attention"), ALGORITHMS["fedgmt"]())
    plain = trace(simulation(setup, Serial))
    kinds = {"chunk": partial(Batched, chunk=2), "recorded": partial(Batched, stepper=recorded)}
    for engine in kinds.values():
        assert largest_gap(plain, trace(simulation(setup, engine))) < 1e-12


def test_a_gradient_with_draws_is_one_operator_of_a_compiled_step(traced: list[list[str]]) -> None:  # noqa: F811
    """And every step draws anew: keys and steps are read, not baked in."""
    setup = setup_of(network("lstm"), ALGORITHMS["fedsam"]())
    engine = partial(Batched, stepper=partial(ReplayStepper, capture=False))
    assert largest_gap(trace(simulation(setup, Serial)), trace(simulation(setup, engine))) < 1e-12
    assert any(sum("sealed_gradient" in node for node in graph) == 2 for graph in traced)


NET = "from torch import nn\n\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))\n"
SMALL = {
    "clients": 6,
    "cohort": 3,
    "rounds": 4,
    "local_steps": 2,
    "batch_size": 10,
    "device": "cpu",
    "dtype": "float64",
}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "net.py").write_text(NET)
    return Config(algorithm="fedsmoo", dataset="digits", model=f"{tmp_path / 'net.py'}:net", **SMALL)


def test_a_batch_of_clients_is_resumed_to_the_bit_and_old_runs_stay_on_serial(config: Config, tmp_path: Path) -> None:
    whole = Run.begin(config, tmp_path / "whole").go()
    assert whole.simulation.engine.name == "vmap"
    seen: list[int] = []
    Run.begin(config, tmp_path / "cut").go(lambda r: seen.append(r.round), stop=lambda: len(seen) == 2)
    assert torch.equal(reopen(tmp_path / "cut").go().server.w, whole.server.w)
    serial = assemble(config.replace(engine="serial")).run()
    assert torch.allclose(serial.server.w, whole.server.w, atol=1e-12)
    # A run that auto put on serial, as it did for all models that draw, goes on there.
    old = Run.begin(config.replace(engine="serial"), tmp_path / "old")
    old.go(lambda r: seen.append(r.round), stop=lambda: len(seen) == 4)
    for path in (tmp_path / "old").glob("**/*.toml"):
        path.write_text(path.read_text().replace('engine = "serial"', 'engine = "auto"'))
    again = reopen(tmp_path / "old")
    assert again.simulation.engine.name == "serial"
    assert torch.equal(again.go().server.w, serial.server.w)


def test_runs_in_one_batch_keep_their_own_masks(config: Config) -> None:
    configs = [config.replace(seed=s, lr=0.1 + 0.1 * s) for s in (0, 1)]
    assert packable(configs)
    for alone, packed in zip([assemble(c).run() for c in configs], Pack(assemble_pack(configs)).run(), strict=True):
        assert torch.allclose(alone.server.w, packed.server.w, atol=1e-12)


# -- what cannot share a batch


def late(x: Tensor) -> Tensor:
    return x * torch.randint(len(x), (len(x), 1))  # whose end is the number of samples, padding and all


def views(x: Tensor) -> Tensor:
    both = F.dropout(torch.cat([x, 2 * x]))  # samples are not the outer part of the axis that grows
    return both[: len(x)] + both[len(x) :]


def squared(x: Tensor) -> Tensor:
    return torch.rand(len(x), len(x), dtype=x.dtype) @ x


def looking(x: Tensor) -> Tensor:
    return F.dropout(x) if float(x.detach().sum()) > -1e9 else x


REFUSED = {
    late: r"gives a sample other random numbers in a batch that is padded than in its own",
    views: r"gives a sample other random numbers in a batch that is padded than in its own",
    squared: r"it draws \[2, 2\] numbers for 2 samples and \[3, 3\] for 3, at once",
    looking: r"vmap cannot run it: RuntimeError: vmap: It looks like",
}


@pytest.mark.parametrize("function", REFUSED)
def test_what_cannot_share_a_batch_is_said_and_trains_on_serial(function: Callable[[Tensor], Tensor]) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), Layer(function), nn.Linear(12, 3)).double()
    setup = setup_of(module)
    with pytest.raises(FedsmooError, match=f"^the model Sequential .*{REFUSED[function]}.*: use engine=serial, or"):
        Batched(setup)
    chosen = make_engine("auto", setup, None, 3, 4)
    assert isinstance(chosen, Serial)
    assert "the model Sequential" in chosen.why
