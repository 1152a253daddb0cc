"""Layers of clients in one batch: gradients are those of each client alone, and no layer is called client by client."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmoo.data.dataset import Dataset
from fedsmoo.engines.oracles.layers import forward_of_many
from fedsmoo.engines.oracles.oracle import single_oracle, vmap_oracle
from fedsmoo.engines.task import Batch, Task
from fedsmoo.models import FlatModel, make_module

CLIENTS, SAMPLES = 3, 4


class Of(nn.Module):
    """The first result of a layer, and then a function of it."""

    def __init__(self, layer: nn.Module, after: Callable[[Tensor], Tensor] = lambda v: v) -> None:
        super().__init__()
        self.layer, self.after = layer, after

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x)
        return self.after(out[0] if isinstance(out, tuple) else out)


class Attention(nn.Module):
    """F.scaled_dot_product_attention of two heads, with a mask of some kind."""

    def __init__(self, mask: str = "") -> None:
        super().__init__()
        self.inside, self.mask = nn.Linear(6, 24), mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.inside(x).chunk(3, -1))
        bias, ends = torch.linspace(-1, 1, 25, dtype=x.dtype).view(5, 5), x[..., 0] < x.mean((1, 2))[:, None] + 1
        masks = {
            "rows": bias,
            "causal numbers": torch.ones(5, 5, dtype=torch.bool).tril(),
            "samples": ends[:, None, None] | torch.eye(5, dtype=torch.bool),  # [B, 1, 5, 5], other for each client
            "samples alike": torch.stack([bias + i for i in range(len(x))])[:, None],  # no client's
            "learned": (self.inside.weight[:5, :5] + bias),  # [5, 5] of each client, differentiated
        }
        return F.scaled_dot_product_attention(q, k, v, masks.get(self.mask), is_causal=self.mask == "causal").flatten(1)


class Steps(nn.Module):
    """A cell over the positions of a sequence."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0] + state[1] if isinstance(state, tuple) else state


class States(nn.Module):
    """A recurrent layer that begins with states of its own, and all that it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.h = nn.LSTM(6, 3), nn.Parameter(torch.linspace(-1, 1, 6).view(2, 1, 1, 3))

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.h.expand(2, 1, len(x), 3)
        out, (h, c) = self.layer(x.transpose(0, 1), (h, c))
        return torch.cat([out.transpose(0, 1).flatten(1), h[0], c[0]], 1)


class Weighted(nn.Module):
    """A bag whose samples have weights, one of which is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.scale = nn.EmbeddingBag(7, 4, mode="sum", padding_idx=2), nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.bag(x, per_sample_weights=self.scale * torch.ones(x.shape, dtype=self.scale.dtype))


Given = tuple[Callable[[], nn.Module], tuple[int, ...]]  # a layer, and the shape of a sample
SEQUENCE, IMAGE, LINE, BODY = (5, 6), (4, 8, 8), (4, 9), (2, 4, 4, 4)
LAYERS: dict[str, Given] = {
    "linear": (lambda: nn.Linear(6, 4), SEQUENCE),
    "conv1d": (lambda: nn.Conv1d(4, 4, 3), LINE),
    "conv2d": (lambda: nn.Conv2d(4, 4, 3, stride=2, padding=1), IMAGE),
    "depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, dilation=2), IMAGE),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2), BODY),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 4, 3), LINE),
    "transposed 2d": (lambda: nn.ConvTranspose2d(4, 4, 3, stride=2), IMAGE),
    "transposed 3d": (lambda: nn.ConvTranspose3d(2, 2, 2), BODY),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), SEQUENCE),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 2, 3)), IMAGE),
    "adaptive average": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d((1, 2))), IMAGE),
    "adaptive average to 1": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveAvgPool2d(1)), IMAGE),
    "adaptive maximum": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.AdaptiveMaxPool2d(2)), IMAGE),
    "maximum": (lambda: nn.Sequential(nn.Conv1d(4, 4, 3), nn.MaxPool1d(2)), LINE),
    "maximum 2d": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.MaxPool2d(2)), IMAGE),
    "average": (lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.AvgPool2d(2)), IMAGE),
    "attention": (Attention, SEQUENCE),
    "attention, causal": (lambda: Attention("causal"), SEQUENCE),
    "attention, a mask of numbers": (lambda: Attention("rows"), SEQUENCE),
    "attention, a mask of truths": (lambda: Attention("causal numbers"), SEQUENCE),
    "attention, a mask of samples": (lambda: Attention("samples"), SEQUENCE),
    "attention, a mask of samples for all": (lambda: Attention("samples alike"), SEQUENCE),
    "attention, a learned mask": (lambda: Attention("learned"), SEQUENCE),
    "transformer": (lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), SEQUENCE),
    "transformer, norm first": (
        lambda: nn.TransformerEncoderLayer(6, 3, 8, 0.0, activation="gelu", norm_first=True),
        SEQUENCE,
    ),
    "lstm": (lambda: Of(nn.LSTM(6, 3)), SEQUENCE),
    "lstm of all kinds": (
        lambda: Of(nn.LSTM(6, 3, num_layers=2, bidirectional=True, batch_first=True, bias=False)),
        SEQUENCE,
    ),
    "lstm, projected": (lambda: Of(nn.LSTM(6, 3, num_layers=2, proj_size=2, bidirectional=True)), SEQUENCE),
    "lstm, states": (States, SEQUENCE),
    "gru": (lambda: Of(nn.GRU(6, 3, num_layers=2, bidirectional=True)), SEQUENCE),
    "gru without biases": (lambda: Of(nn.GRU(6, 3, batch_first=True, bias=False)), SEQUENCE),
    "rnn": (lambda: Of(nn.RNN(6, 3, num_layers=2)), SEQUENCE),
    "rnn, relu": (lambda: Of(nn.RNN(6, 3, nonlinearity="relu", batch_first=True)), SEQUENCE),
    "lstm cell": (lambda: Steps(nn.LSTMCell(6, 3)), SEQUENCE),
    "gru cell": (lambda: Steps(nn.GRUCell(6, 3)), SEQUENCE),
    "rnn cell": (lambda: Steps(nn.RNNCell(6, 3)), SEQUENCE),
}
TOKENS: dict[str, Callable[[], nn.Module]] = {
    "embedding": lambda: nn.Embedding(7, 4, padding_idx=2),
    "bag of sums": lambda: nn.EmbeddingBag(7, 4, mode="sum"),
    "bag of means": lambda: nn.EmbeddingBag(7, 4, padding_idx=2),
    "bag of maxima": lambda: nn.EmbeddingBag(7, 4, mode="max", padding_idx=2),
    "bag with weights": Weighted,
}


@pytest.fixture(autouse=True)
def no_layer_is_called_client_by_client() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "There is a performance drop because we have not yet implemented ..."
        warnings.filterwarnings("ignore", ".* set batch_first=True")  # some go along samples, to try it
        yield


def task_of(make: Callable[[], nn.Module], x: Tensor) -> Task:
    """A task whose loss is of all outputs, each with a factor of its own."""
    module = make_module(lambda: nn.Sequential(make(), nn.Flatten()), 0).double()
    y = torch.arange(len(x)) % 2

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return (out.square() * torch.linspace(0.5, 1.5, out.shape[1], dtype=out.dtype)).sum(1) * (1 + y)

    return Task(FlatModel(module), Dataset("x", x, y, x, y, 2), torch.device("cpu"), torch.float64, loss)


def check(task: Task, x: Tensor) -> None:
    """Gradients and losses of clients at weights of their own, against those of each alone."""
    size, y = task.model.layout.size, torch.arange(CLIENTS * SAMPLES).view(CLIENTS, -1) % 2
    weight = torch.full((CLIENTS, SAMPLES), 1 / SAMPLES, dtype=torch.float64)
    apart = torch.linspace(-0.3, 0.3, CLIENTS * size, dtype=torch.float64).view(CLIENTS, size)
    w = task.model.initial() + apart.roll(7, 1) * torch.arange(size).remainder(5)
    task.model.train()
    gradients, losses = vmap_oracle(task)(w, Batch(x, y, weight))
    for c in range(CLIENTS):
        gradient, loss = single_oracle(task)(w[c], Batch(x[c], y[c], weight[c]))
        assert gradient.norm() > 0
        assert (gradients[c] - gradient).abs().max() <= 1e-12 * gradient.abs().max().clamp(min=1)
        assert abs(losses[c] - loss) <= 1e-12 * abs(loss)


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_a_layer_are_those_of_each_client_alone(name: str) -> None:
    make, shape = LAYERS[name]
    x = torch.randn(CLIENTS, SAMPLES, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    check(task_of(make, x.flatten(0, 1)), x)


@pytest.mark.parametrize("name", TOKENS)
def test_gradients_of_embeddings_are_those_of_each_client_alone(name: str) -> None:
    x = torch.randint(7, (CLIENTS, SAMPLES, 5), generator=torch.Generator().manual_seed(0))
    x[0, 0] = 2  # nothing but padding
    check(task_of(TOKENS[name], x.flatten(0, 1)), x)


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention_with_masks_trains_and_is_evaluated_at_once(need_weights: bool) -> None:
    """In evaluation PyTorch takes a kernel of its own for one model; of many the answers are the same."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            ends = torch.zeros(x.shape[:2], dtype=torch.bool)
            ends[:, 4:] = True
            return self.inner(x, x, x, key_padding_mask=ends, need_weights=need_weights)[0]

    x = torch.randn(CLIENTS, SAMPLES, *SEQUENCE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    task = task_of(Heads, x.flatten(0, 1))
    check(task, x)
    model = task.model
    w = model.initial() * torch.tensor([[1.0], [0.5], [2.0]], dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        many = torch.func.vmap(forward_of_many(model, evaluates=True))(model.layout.split(w), x)
        for c in range(CLIENTS):
            assert torch.allclose(many[c], model.forward(model.layout.split(w[c]), x[c]), rtol=0, atol=1e-12)


def test_batch_norm_in_evaluation_is_one_call_for_all_clients() -> None:
    x = torch.randn(CLIENTS, SAMPLES, *IMAGE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    norm = nn.BatchNorm2d(4).double().eval()
    weights, statistics = (
        {n: torch.stack([p.detach() + c for c in range(CLIENTS)]) for n, p in given if p.dim()}
        for given in (norm.named_parameters(), norm.named_buffers())
    )

    def loss(weights: dict[str, Tensor], statistics: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(norm, (weights, statistics), (x,)).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss))(weights, statistics, x)
    for c in range(CLIENTS):
        alone = torch.func.grad(loss)(*({n: p[c] for n, p in own.items()} for own in (weights, statistics)), x[c])
        assert all(torch.allclose(gradients[n][c], alone[n], rtol=1e-12) for n in weights)
