"""LayerNorm's backward with a client axis against PyTorch's own, client by client."""

import pytest
import torch
from torch.nn import functional as F

# clients, rows of a client, width
SHAPES = {
    "one number": (1, (1,), 1),
    "one client's sample, a prime width": (1, (1,), 13),
    "one row of each": (3, (1, 1), 8),
    "primes": (2, (3, 5), 7),
    "more rows than a run has": (2, (7, 11), 24),
    "wider than 4,096": (1, (3,), 5003),
    "a whole power of two": (1, (2, 2), 4096),
}
# how the gradient comes, and what else is asked for: bfloat16, rows in another order in memory, a second gradient to
# add, the result in bfloat16 as well
WAYS = {
    "alone": (False, False, False, False),
    "from a product and to a product": (True, False, False, True),
    "rows turned": (False, True, False, False),
    "all of it": (True, True, True, True),
}


def by_pytorch(x, gamma, dy, more):
    """Return one client's gradients in float64."""
    x, gamma, beta = (v.double().requires_grad_() for v in (x, gamma, torch.zeros_like(gamma)))
    out = F.layer_norm(x, gamma.shape, gamma, beta)
    dx, *rest = torch.autograd.grad(out, (x, gamma, beta), dy.double())
    return dx + more, *rest


def given(draw, clients, rows, width):
    """Return inputs, gamma as it lies among parameters, and statistics."""
    x = draw(clients, *rows, width)
    x *= 3
    x += 5
    gamma = draw(clients, width + 3)[:, 1 : width + 1]
    _, mean, rstd = torch.native_layer_norm(x, [width], None, None, 1e-5)
    return x, gamma, mean, rstd


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_backward(shape, way, draw, monkeypatch):
    from fedsmoo.kernels.norms import layer
    from fedsmoo.kernels.norms.layer import Tile, backward

    (clients, rows, width), (coarse, turned, added, rounded) = shape, way
    x, gamma, mean, rstd = given(draw, clients, rows, width)
    dy = draw(clients, *(rows[::-1] if turned else rows), width)
    dy = dy.bfloat16() if coarse else dy
    dy = dy.transpose(1, -2) if turned else dy
    more = draw(*x.shape) if added else None
    monkeypatch.setattr(layer, "PARTS", 3)  # so that there are several runs of several tiles
    tile = Tile(2, 1, 1)
    found = backward(dy, x, gamma, mean, rstd, more, rounded, tile)
    again = backward(dy, x, gamma, mean, rstd, more, rounded, tile)
    assert all(map(torch.equal, found, again))
    dx, dgamma, dbeta, low = found
    others = torch.zeros_like(x) if more is None else more
    each = [by_pytorch(*v) for v in zip(x, gamma, dy, others, strict=True)]
    for got, want in zip((dx, dgamma.sum(1), dbeta.sum(1)), map(torch.stack, zip(*each, strict=True)), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=3e-5 * max(1.0, float(want.abs().max())))
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), dx if rounded else dx[:0].flatten(), rtol=2**-7, atol=0)  # truncated, here


@pytest.mark.parametrize("order", [(0, 2, 1, 3, 4), (0, 3, 2, 1, 4), (0, 1, 2, 4, 3)], ids=str)
def test_gradients_of_any_order_in_memory(order, draw):
    """Two strides of rows are followed; where there are more, or columns lie apart, the gradient is copied."""
    from fedsmoo.kernels.norms.layer import backward

    x, gamma, mean, rstd = given(draw, 2, (2, 3, 4), 5)
    back = [order.index(i) for i in range(5)]
    dy = draw(*(x.shape[i] for i in order)).permute(back)
    assert dy.shape == x.shape
    for got, want in zip(backward(dy, x, gamma, mean, rstd), backward(dy.clone(), x, gamma, mean, rstd), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("clients", [1, 10, 300])
@pytest.mark.parametrize("rows", [1, 3, 3200, 6400, 100_003])
def test_runs_hold_every_row_and_none_is_empty(clients, rows, device):
    from fedsmoo.kernels.norms.layer import PARTS, Tile, parts_of, run_of

    for tile in (Tile(1, 4, 1), Tile(8, 4, 4), Tile(16, 8, 8)):
        parts = parts_of(clients, rows, tile)
        span = run_of(rows, parts, tile)
        assert (parts - 1) * span < rows <= parts * span
        assert 1 <= parts <= PARTS
        assert span % tile.rows == 0
