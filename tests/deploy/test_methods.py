"""Every method through Flower's messages, with client vectors in files, to the bits of the serial engine."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

from flwr.app import ArrayRecord
from safetensors.torch import load_file

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.core import FedsmooError
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.deploy.client import Recipe, own_scale
from fedsmoo.deploy.flower import FlowerStrategy, client_app
from fedsmoo.deploy.server import Coordinator
from fedsmoo.deploy.settings import Federation
from fedsmoo.models import make_module, wrap
from fedsmoo.runs.build import assemble, make_algorithm
from fedsmoo.runs.config import Config
from fedsmoo.runs.division import make_clients

from .fake import FakeGrid

SMALL = Config(
    dataset="digits", model="softmax", clients=6, cohort=3, rounds=3, local_epochs=1, batch_size=96, lr=0.05,
    device="cpu", seed=2, engine="serial",
)  # fmt: skip


def federate(config: Config, tmp_path, recipe: Recipe | None = None, grid=None, **federation):
    """Run what is left of a federation; returns its coordinator and its grid."""
    recipe = recipe or Recipe()
    federation = Federation(name="test", server_folder=str(tmp_path / "server"), **federation)
    coordinator = Coordinator(config, federation, recipe.setup(config, recipe.test(config)))
    grid = grid or FakeGrid(client_app(recipe), config.clients, {}, tmp_path / "state")
    strategy = FlowerStrategy(coordinator, grid.clock, grid.sleep)
    strategy.start(grid, ArrayRecord(), config.rounds - coordinator.number)
    return coordinator, grid


# Rounding touches what travels and what is kept: three methods cover every pattern of that.
CASES = [(name, "exact") for name in ALGORITHMS] + [
    (name, wire) for name in ("fedsmoo", "scaffold", "fedcm") for wire in ("fp16", "int8")
]


@pytest.mark.parametrize(("name", "wire"), CASES)
def test_a_federation_is_the_serial_run(name, wire, tmp_path):
    config = SMALL.replace(algorithm=name, wire=wire, algorithm_options={"norms": "*bias"} if name == "fedbn" else {})
    coordinator, _ = federate(config, tmp_path)
    result = assemble(config).run()
    for n, v in result.server.items():
        assert torch.equal(v, getattr(coordinator.server, n)), n
    state = {p.parent.name for p in (tmp_path / "state").rglob("*.safetensors")}
    met = {str(i) for r in result.history for i in r.cohort}
    assert state == (met if result.simulation.setup.algorithm.own else set())


def test_clients_find_the_numbers_of_a_round_themselves(tmp_path):
    """A federation with schedules is the serial run: the server sends no number of the method."""
    options = {"r": "linear:0.01:0.4:3", "beta": "steps:10:1:2"}
    config = SMALL.replace(algorithm="fedsmoo", algorithm_options=options, relaxed=0.1)
    coordinator, _ = federate(config, tmp_path)
    result = assemble(config).run()
    assert all(torch.equal(v, getattr(coordinator.server, n)) for n, v in result.server.items())
    still = assemble(config.replace(algorithm_options={"r": 0.01, "beta": 10.0})).run()
    assert not torch.equal(still.server.w, result.server.w)


def test_clients_and_server_draw_the_noise_of_a_run(tmp_path):
    """Each knows the seed, the round and itself: no key travels."""
    method = make_algorithm(f"{Path(__file__).parents[1] / 'engines' / 'told.py'}:Noisy", {})
    coordinator, _ = federate(SMALL, tmp_path, Recipe(algorithm=method))
    result = assemble(SMALL, method).run()
    assert torch.equal(result.server.w, coordinator.server.w)


@pytest.mark.parametrize("wire", ["exact", "fp16", "int8"])
def test_single_numbers_and_weighted_steps_travel(wire, tmp_path):
    """FedNova: the mean of the steps has the vectors' weights, as it is in the serial run and in a literal sum."""
    method = make_algorithm(f"{Path(__file__).parents[1] / 'fednova.py'}:FedNova", {})
    config = SMALL.replace(weighted=True, wire=wire, dataset="synthetic", partition="natural", clients=30, lr=0.01)
    config = config.replace(batch_size=32)
    coordinator, _ = federate(config, tmp_path, Recipe(algorithm=method), max_share=1.0)
    result = assemble(config, method).run()
    for n, v in result.server.items():
        assert torch.equal(v, getattr(coordinator.server, n)), n
    sizes = [len(result.simulation.indices[i]) for i in result.history[-1].cohort]
    steps = [-(-n // 32) for n in sizes]
    mean = sum(n * k for n, k in zip(sizes, steps, strict=True)) / sum(sizes)
    assert coordinator.server.steps.item() == pytest.approx(mean, rel=1e-6)
    assert coordinator.server.k.item() == pytest.approx(mean, rel=1e-6)
    assert abs(mean - sum(steps) / len(steps)) > 0.1  # the plain mean is another


def array_bytes(message):
    """How many bytes of numbers each array of a message has, without the headers of the format."""
    arrays = next(iter(message.content.array_records.values()))
    return [math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in arrays.values()]


KINDS = Path(__file__).parents[1] / "kinds.py"


@pytest.mark.parametrize(
    ("name", "wire"),
    [(name, "exact") for name in ("Numbers", "Stretched", "Median", "Heads")]
    + [("Numbers", "int8"), ("Median", "fp16")],
)
def test_single_numbers_rows_and_parts_travel(name, wire, tmp_path):
    """Numbers that are sent, kept and sent back, a server that sees every reply, and parameters that stay."""
    method = make_algorithm(f"{KINDS}:{name}", {})
    config = SMALL.replace(weighted=True, wire=wire, u=0.3, model="mlp")
    recipe = Recipe(algorithm=method)
    grid, seen = FakeGrid(client_app(recipe), config.clients, {}, tmp_path / "state"), []
    grid.twist = lambda reply: seen.append(sum(array_bytes(reply))) or reply  # type: ignore[func-returns-value]
    coordinator, _ = federate(config, tmp_path, recipe, grid)
    result = assemble(config, method).run()
    assert sum(seen) == sum(r.bytes_up for r in result.history)  # the ledger counts what is in the messages
    for n, v in result.server.items():
        assert torch.equal(v, getattr(coordinator.server, n)), n
    if method.own:
        kept = {p.parent.name: load_file(p) for p in sorted((tmp_path / "state").rglob("*.safetensors"))}
        rows = dict(result.simulation.engine.table.items())
        assert kept.keys() == {str(i) for i in rows}
        assert all(torch.equal(kept[str(i)][n], v) for i, row in rows.items() for n, v in row.items())


@pytest.mark.parametrize("change", [{"weighted": True}, {"relaxed": 0.1}, {"local_epochs": None, "local_steps": 2}])
def test_options_too(change, tmp_path):
    config = SMALL.replace(algorithm="fedsmoo", **change)
    coordinator, _ = federate(config, tmp_path)
    result = assemble(config).run()
    assert all(torch.equal(v, getattr(coordinator.server, n)) for n, v in result.server.items())


def test_random_layers_too(tmp_path):
    """Every node draws the masks that the simulation draws for its client, whose two gradients of a step share them."""

    def net(config, data):
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Dropout(0.5), torch.nn.Linear(64, 10))

    config = SMALL.replace(algorithm="fedsmoo", engine="serial")  # to the bit: a node trains one client
    coordinator, _ = federate(config, tmp_path, Recipe(model=net))
    data = Recipe().test(config)
    model = wrap(make_module(lambda: net(config, data), config.seed), data)
    result = assemble(config, data=data, model=model).run()
    assert result.simulation.setup.task.model.random
    assert all(torch.equal(v, getattr(coordinator.server, n)) for n, v in result.server.items())
    assert coordinator.setup.task.evaluate(coordinator.server.w).lead == result.accuracy


def normed(config, data):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 10)
    )


@pytest.mark.parametrize(
    ("method", "wire", "statistics"),
    [("fedsmoo", "exact", "averaged"), ("fedavg", "int8", "averaged"), ("scaffold", "exact", "local")],
)
def test_running_statistics_travel_or_stay(method, wire, statistics, tmp_path):
    """BatchNorm: averaged statistics are in the messages, whole on any wire; local ones in clients' files alone."""
    config = SMALL.replace(algorithm=method, wire=wire, statistics=statistics, weighted=True, batch_size=31)
    recipe = Recipe(model=normed)
    grid, seen = FakeGrid(client_app(recipe), config.clients, {}, tmp_path / "state"), []
    grid.twist = lambda reply: seen.append(sum(array_bytes(reply))) or reply  # type: ignore[func-returns-value]
    coordinator, _ = federate(config, tmp_path, recipe, grid, max_share=1.0)
    data = Recipe().test(config)
    result = assemble(config, data=data, model=wrap(make_module(lambda: normed(config, data), config.seed), data)).run()
    assert sum(seen) == sum(r.bytes_up for r in result.history)
    for n, v in result.server.items():
        if n != "statistics" or statistics == "averaged":
            assert torch.equal(v, getattr(coordinator.server, n)), n
    lines = [json.loads(line) for line in (tmp_path / "server" / "rounds.jsonl").read_text().splitlines()]
    state = load_file(tmp_path / "server" / "model.safetensors")
    if statistics == "local":  # of which the server knows nothing: neither a score nor a file claims to
        assert [line["test_accuracy"] for line in lines] == [None] * config.rounds
        assert not [n for n in state if n.startswith("2.running") or n == "2.num_batches_tracked"]
        kept = {p.parent.name: load_file(p) for p in sorted((tmp_path / "state").rglob("*.safetensors"))}
        for i, row in result.simulation.engine.table.items():
            assert torch.equal(kept[str(i)]["statistics"], row["statistics"])
    else:
        assert [line["test_accuracy"] for line in lines] == [r.test_accuracy for r in result.history]
        assert torch.equal(state["2.running_mean"], result.model[2].running_mean)


def test_augmented_images_too(tmp_path):
    """Colour images that are flipped and cropped: every node draws what the simulation draws for its client."""

    def images(config):
        from fedsmoo.data.dataset import Dataset

        x = (torch.arange(60 * 8 * 8 * 3).view(60, 8, 8, 3) * 37 % 251).to(torch.uint8)
        y = torch.arange(60) % 3
        return Dataset("dots", x, y, x[:9], y[:9], 3, (0.5,) * 3, (0.2,) * 3, augment=True)

    def mine(client, config):
        data = images(config)
        return replace(data, x_train=data.x_train[client::4], y_train=data.y_train[client::4])

    config = SMALL.replace(algorithm="fedsmoo", model="cnn_gn", clients=4, cohort=2, batch_size=8)
    coordinator, _ = federate(config, tmp_path, Recipe(data=mine, test=images))
    indices = [torch.arange(60)[i::4].numpy() for i in range(4)]
    result = assemble(config, data=images(config), indices=indices).run()
    assert all(torch.equal(v, getattr(coordinator.server, n)) for n, v in result.server.items())


def test_a_method_of_ones_own(tmp_path):
    from fedsmoo.algorithms import FedSMOO

    config, recipe = SMALL.replace(algorithm="fedavg"), Recipe(algorithm=FedSMOO(r=0.3, beta=5.0))
    coordinator, _ = federate(config, tmp_path, recipe)
    result = assemble(config, FedSMOO(r=0.3, beta=5.0)).run()
    assert torch.equal(result.server.s, coordinator.server.s)


def test_images_of_nodes_are_normalised_alike_if_they_are_given_the_same_numbers(tmp_path):
    """Then a federation is the simulation; by each node's own mean and std, which it warns of, it is not."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = (rng.integers(0, 90, (120, 4, 4)) + 60 * y[:, None, None]).astype(np.uint8)
    whole = from_arrays(x[:90], y[:90], x[90:], y[90:])
    config = SMALL.replace(clients=3, cohort=3, rounds=2, algorithm="fedavg", batch_size=10, u=0.5)
    shares = make_clients(config, whole)

    def node(client: int, config: Config, **scale: tuple[float, ...]) -> Dataset:
        return from_arrays(x[shares[client]], y[shares[client]], x[90:], y[90:], **scale)

    def same(client: int, config: Config) -> Dataset:
        return node(client, config, mean=whole.mean, std=whole.std)

    want = assemble(config, data=whole, indices=shares).run().server.w
    alike, _ = federate(config, tmp_path / "a", Recipe(data=same, test=lambda config: whole))
    assert torch.equal(alike.server.w, want)
    apart, _ = federate(config, tmp_path / "b", Recipe(data=node, test=lambda config: whole))
    assert not torch.allclose(apart.server.w, want, atol=1e-3)
    assert "mean and std of this node's own samples" in own_scale(node(0, config), config.clients)
    assert own_scale(same(0, config), config.clients) is None
    with pytest.raises(FedsmooError, match="give both mean and std"):
        node(0, config, mean=(0.5,))
    with pytest.raises(FedsmooError, match="one value per channel"):
        node(0, config, mean=(0.5, 0.5), std=(1.0, 1.0))
    with pytest.raises(FedsmooError, match=r"mean is 0\.5, but must be one number for each channel"):
        node(0, config, mean=0.5, std=0.5)
