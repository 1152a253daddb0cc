"""The capacity term and the margin error against dense linear algebra and counting."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from fedsmoo.analysis.functions import bound
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.random.streams import stream

from .conftest import Small, small_task


def dense_map(layer: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    """A layer without its bias as a matrix, column by column."""
    size = math.prod(shape)
    basis = torch.eye(size, dtype=torch.float64).view(size, *shape)
    zero = layer(torch.zeros(1, *shape, dtype=torch.float64))
    return (layer(basis) - zero).flatten(1).T.detach()


OPTIONS: list[dict[str, Any]] = [
    {"padding": 1},
    {"stride": 2, "padding": 1},
    {"stride": 2, "dilation": 2},
    {"padding": 2, "padding_mode": "circular"},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_convolution_norm_is_the_largest_singular_value(options: dict[str, Any]) -> None:
    layer = nn.Conv2d(2, 3, 3, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(stream(0, "test kernel").standard_normal((3, 2, 3, 3))))
    found = bound.convolution_norm(layer, (2, 7, 7))
    assert found == pytest.approx(torch.linalg.svdvals(dense_map(layer, (2, 7, 7)))[0].item(), rel=1e-6)


@pytest.mark.parametrize("operator", [True, False])
def test_capacity_of_a_cnn_by_dense_svd(operator: bool) -> None:
    task = small_task("cnn_gn", width=2)
    module, x = task.model.module, task.data.x_test[:2].double()
    layers = bound.weight_layers(module, x, operator)
    maps = {"conv1": (1, 8, 8), "conv2": (2, 8, 8), "conv3": (4, 4, 4), "fc": (4,)}
    norms = {}
    for name, shape in maps.items():
        layer = getattr(module, name)
        matrix = dense_map(layer, shape) if operator else layer.weight.detach().flatten(1)
        norms[name] = (torch.linalg.svdvals(matrix)[0].item(), layer.weight.norm().item())
    assert {layer.name: layer.spectral for layer in layers} == pytest.approx(
        {n: s for n, (s, _) in norms.items()}, rel=1e-5
    )
    product = math.prod(s**2 for s, _ in norms.values())
    expected = product * sum(f**2 / s**2 for s, f in norms.values())
    assert math.exp(bound.log_capacity(layers)) == pytest.approx(expected, rel=1e-4)


def test_margin_error_counts_samples(small: Small) -> None:
    s = bound.sam_perturbation(small.loss, small.w, 0.1)
    assert s.norm().item() == pytest.approx(0.1)
    out = small.loss.outputs(small.w + s)
    for eps in (0.0, 0.2, 2.0):
        count = 0
        for row, label in zip(out.tolist(), small.loss.y.tolist(), strict=True):
            others = max(v for j, v in enumerate(row) if j != label)
            count += row[label] <= others + eps
        assert bound.margin_error(small.loss, small.w, s, eps) == pytest.approx(count / 60)
    assert bound.margin_error(small.loss, small.w, 0 * s, 0.0) == pytest.approx(1 - small.loss.evaluate(small.w)[1])


def test_bound_term_is_the_formula() -> None:
    layers = [bound.Layer("a", 2.0, 3.0, 7), bound.Layer("b", 0.5, 1.0, 5)]
    capacity = (2.0 * 0.5) ** 2 * (9 / 4 + 4)
    inside = (2**2 * 1.5**2 * 7 * math.log(7 * 2) * capacity + math.log(2 * 100 / 0.05)) / (99 * 0.3**2)
    assert bound.bound_term(layers, 100, 1.5, 0.3) == pytest.approx(math.log(math.sqrt(inside)))
    with pytest.raises(FedsmooError, match="eps > 0"):
        bound.bound_term(layers, 100, 1.5, 0.0)


def test_a_model_without_weight_layers_is_refused() -> None:
    with pytest.raises(FedsmooError, match="linear and convolutional"):
        bound.weight_layers(nn.GroupNorm(1, 1), torch.zeros(1, 1, 2, 2))


def test_a_model_with_other_weights_is_refused_and_one_with_norms_is_not() -> None:
    """Without the recurrent layer's weights the capacity would be that of the read-out alone."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.fc = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.rnn(x)[0])

    with pytest.raises(FedsmooError, match=r"without rnn\.weight_ih_l0, which is of neither, it would be of another"):
        bound.weight_layers(Recurrent(), torch.zeros(1, 5, 3))
    normed = nn.Sequential(nn.LayerNorm((5, 3)), nn.Linear(3, 2))
    assert [layer.name for layer in bound.weight_layers(normed, torch.zeros(1, 5, 3))] == ["1"]
