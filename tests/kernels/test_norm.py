"""GroupNorm with a client axis against PyTorch's own, client by client."""

import pytest
import torch
import torch.nn.functional as F

# clients, batch, pixels, channels, groups
SHAPES = {
    "a whole group": (2, 3, 16, 8, 2),
    "one pixel": (1, 2, 1, 12, 3),
    "primes": (2, 1, 35, 21, 7),
    "one group of one channel": (1, 1, 5, 1, 1),
    "too large for registers": (1, 2, 300, 128, 1),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_forward_and_backward(shape, draw):
    from fedsmoo.kernels.norm import backward, forward

    clients, batch, pixels, channels, groups = shape
    x, dy = draw(clients, batch, pixels, channels) * 3 + 5, draw(clients, batch, pixels, channels)
    gamma, beta = draw(clients, channels), draw(clients, channels)
    y, mean, rstd = forward(x, gamma, beta, groups, 1e-5)
    found = y, *backward(dy, x, gamma, mean, rstd, groups)
    rows = []
    for xc, gc, bc, dyc in zip(x, gamma, beta, dy, strict=True):
        parts = [v.double().detach().requires_grad_() for v in (xc, gc, bc)]
        out = F.group_norm(parts[0].transpose(1, 2), groups, *parts[1:]).transpose(1, 2)
        rows.append((out.detach(), *torch.autograd.grad(out, parts, dyc.double())))
    for got, want in zip(found, (torch.stack(v) for v in zip(*rows, strict=True)), strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-5 * max(1.0, float(want.abs().max())))
