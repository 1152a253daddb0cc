"""Random and recurrent models as graphs that a compiled step takes whole: each gradient is that of a client alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedsmoo.core.gradient import Running
from fedsmoo.core.random.layers import ClientsNoise
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.data.check import from_arrays
from fedsmoo.engines.oracles import recurrent
from fedsmoo.engines.oracles.oracle import single_oracle, vmap_oracle
from fedsmoo.engines.oracles.traced import TracedOracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.models import FlatModel, make_module
from fedsmoo.operators.trace import called

REAL, WIDTH, LENGTH, WORDS = (5, 3, 1), 5, 6, 11  # two of three clients have padding


class Text(nn.Module):
    """Words through a layer, and a class at the end."""

    def __init__(self, inner: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(WORDS, 8, padding_idx=2), inner, nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(self.embed(x))
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


def attending() -> nn.Module:
    return Text(nn.TransformerEncoderLayer(8, 2, 12, 0.3, "gelu", batch_first=True))


# a model, and which operators of ours its graph has, how often
MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, int]]] = {
    "lstm of two layers and dropout": (
        lambda: Text(nn.LSTM(8, 5, 2, batch_first=True, dropout=0.4), 5),
        {"noise": 1, "recurrence": 2, "recurrence_backward": 2},
    ),
    "gru in both directions": (
        lambda: Text(nn.GRU(8, 3, batch_first=True, bidirectional=True), 6),
        {"recurrence": 2, "recurrence_backward": 2},
    ),
    "rnn without biases": (
        lambda: Text(nn.RNN(8, 5, bias=False, batch_first=True), 5),
        {"recurrence": 1, "recurrence_backward": 1},
    ),
    "transformer with dropout": (attending, {"noise": 4}),  # weights of attention, its outputs, and twice behind
}


@pytest.mark.parametrize(("name", "as_on_a_gpu"), [*((n, False) for n in MODELS), (next(iter(MODELS)), True)])
def test_a_graph_gives_each_client_its_own_gradient(name: str, as_on_a_gpu: bool, monkeypatch) -> None:
    if as_on_a_gpu:  # where the recurrence adds its bias
        monkeypatch.setattr(recurrent, "adds_bias", lambda x: True)
    make, ours = MODELS[name]
    draw = torch.Generator().manual_seed(3)
    x, y = torch.randint(WORDS, (30, LENGTH), generator=draw), torch.randint(4, (30,), generator=draw)
    task = Task(FlatModel(make_module(make, 0)), from_arrays(x, y, x, y, "words"), torch.device("cpu"), torch.float64)
    oracle, clients = TracedOracle(vmap_oracle(task)), len(REAL)
    size = (clients, task.model.layout.size)
    w = task.model.initial().double() + 0.1 * torch.randn(size, generator=draw, dtype=torch.float64)
    real = torch.tensor(REAL)
    weight = (torch.arange(WIDTH) < real[:, None]).double() / real[:, None]
    given = oracle.batch(torch.arange(clients * WIDTH).view(clients, WIDTH), weight)
    keys = [key_of(0, "layers", 1, c) for c in range(clients)]
    task.model.train()
    in_step = oracle.ready(w, given)
    assert not oracle.slower
    for step in (0, 7):  # of one graph: where clients draw is an input of it
        noise = None
        if task.model.random:
            noise = ClientsNoise(torch.tensor(keys), torch.full((clients,), step), real, WIDTH, oracle.axes)
        gradients, losses = in_step(w, Batch(given.x, given.y, weight, noise, given.real), None)
        for c, n in enumerate(REAL):
            mine = Batch(given.x[c, :n], given.y[c, :n], weight[c, :n], Noise(keys[c], step) if noise else None)
            want, loss = single_oracle(task)(w[c], mine)
            torch.testing.assert_close(gradients[c], want, rtol=0, atol=1e-13)
            torch.testing.assert_close(losses[c], loss, rtol=0, atol=1e-13)
    (graph,) = (c.cell_contents for c in in_step.__closure__ if isinstance(c.cell_contents, torch.fx.GraphModule))
    names = [n.removeprefix("fedsmoo.").removesuffix(".default") for n in called(graph) if "fedsmoo" in n]
    assert {n: names.count(n) for n in names} == {**ours, "embedding_weight": 1, "place": 1}  # no words copied
    from torch._inductor.lowering import lowerings

    # A step's compiler knows them before it meets them.
    assert {n.target for n in graph.graph.nodes if getattr(n.target, "namespace", "") == "fedsmoo"} <= set(lowerings)


def test_batch_norm_in_a_graph_sees_each_client_s_samples_and_statistics_alone() -> None:
    """Running statistics are an input of the graph and its third result; rows that fill a batch up are hidden."""

    def net() -> nn.Module:
        norms = [nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)], [nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
        convs = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2)
        return nn.Sequential(convs[0], *norms[0], convs[1], *norms[1], nn.Linear(8, 4))

    draw = torch.Generator().manual_seed(3)
    x, y = torch.randn(30, 3, 8, 8, generator=draw), torch.randint(4, (30,), generator=draw)
    task = Task(FlatModel(make_module(net, 0)), from_arrays(x, y, x, y, "noise"), torch.device("cpu"), torch.float64)
    model, real = task.model, torch.tensor([5, 3, 2])
    assert model.padding == "masked"
    assert model.statistics is not None
    oracle = TracedOracle(vmap_oracle(task))
    w = model.initial().double() + 0.1 * torch.randn(3, model.layout.size, generator=draw, dtype=torch.float64)
    weight = (torch.arange(WIDTH) < real[:, None]).double() / real[:, None]
    given = oracle.batch(torch.arange(3 * WIDTH).view(3, WIDTH), weight)
    before = torch.rand(3, model.statistics.size, generator=draw, dtype=torch.float64) + 0.5
    model.train()
    in_step, running = oracle.ready(w, given), Running(before.clone())
    assert not oracle.slower
    gradients, losses = in_step(w, Batch(given.x, given.y, weight, None, given.real, running), None)
    assert torch.equal(running.before, before)
    for c, n in enumerate(real.tolist()):
        mine = Running(before[c].clone())
        want, loss = single_oracle(task)(w[c], Batch(given.x[c, :n], given.y[c, :n], weight[c, :n], running=mine))
        torch.testing.assert_close(gradients[c], want, rtol=0, atol=1e-12)
        torch.testing.assert_close(losses[c], loss, rtol=0, atol=1e-13)
        torch.testing.assert_close(running.now[c], mine.now, rtol=0, atol=1e-14)
    (graph,) = (c.cell_contents for c in in_step.__closure__ if isinstance(c.cell_contents, torch.fx.GraphModule))
    assert [called(graph).count(f"fedsmoo.{n}.default") for n in ("conv", "pool", "place")] == [2, 1, 1]


def test_a_kernel_that_the_device_s_compiler_refuses_costs_speed_alone(monkeypatch) -> None:
    def refused(graph: torch.fx.GraphModule) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr("fedsmoo.engines.oracles.traced.compile_ahead", refused)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    task = Task(FlatModel(nn.Linear(4, 3)), from_arrays(x, y, x, y, "noise"), torch.device("cpu"), torch.float64)
    oracle = TracedOracle(vmap_oracle(task))
    w, given = task.model.initial().double().expand(2, -1), oracle.batch(torch.arange(6).view(2, 3), torch.ones(2, 3))
    with pytest.warns(RuntimeWarning, match="no such instruction"):
        in_step = oracle.ready(w, given)
    assert oracle.slower
    torch.testing.assert_close(in_step(w, given, None), oracle.gradient(w, given), rtol=0, atol=0)
