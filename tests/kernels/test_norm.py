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
    "a group for each channel": (2, 2, 9, 7, 7),
    "too large for registers": (1, 2, 300, 128, 1),
}


# what stands behind the norm: whether images are added, a ReLU, a second gradient, and the gradient by what was added;
# and whether the ReLU's backward is told the outputs, or beta
WAYS = {
    "alone": (False, False, False, False, False),
    "a ReLU": (False, True, False, False, False),
    "the end of a block": (True, True, True, True, False),
    "a ReLU whose sign is known": (False, True, False, False, True),
    "such a ReLU and two gradients": (False, True, True, False, True),
}


def by_pytorch(x, gamma, beta, groups, add, relu, gradient):
    """Return one client's outputs and gradients in float64."""
    parts = [v.double().detach().requires_grad_() for v in (x, gamma, beta, add)]
    out = F.group_norm(parts[0].transpose(1, 2), groups, *parts[1:3]).transpose(1, 2) + parts[3]
    out = out.relu() if relu else out
    return out.detach(), *torch.autograd.grad(out, parts, gradient.double())


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_forward_and_backward(shape, way, draw):
    from fedsmoo.kernels.norms.group import backward, forward

    (clients, batch, pixels, channels, groups), (added, relu, more, keep, sign) = shape, way
    x, dy, second, add = (draw(clients, batch, pixels, channels) for _ in range(4))
    x, add, second = x * 3 + 5, add if added else torch.zeros_like(x), second if more else torch.zeros_like(x)
    gamma, beta = draw(clients, 2 * channels + 3).split((channels, channels + 3), 1)  # as they lie among parameters
    beta = beta[:, 1 : channels + 1]
    y, mean, rstd = forward(x, gamma, beta, groups, 1e-5, add if added else None, relu)
    found = backward(
        dy,
        x,
        gamma,
        mean,
        rstd,
        groups,
        y if relu and not sign else None,
        second if more else None,
        keep,
        beta if sign else None,
    )  # of each sample, where gamma and beta are
    found = y, found[0], found[1].sum(1), found[2].sum(1), *((found[3],) if keep else ())
    assert keep or len(found) == 4
    rows = [
        by_pytorch(xc, gc, bc, groups, ac, relu, dc)
        for xc, gc, bc, ac, dc in zip(x, gamma, beta, add, dy + second, strict=True)
    ]
    for got, want in zip(found, [torch.stack(v) for v in zip(*rows, strict=True)][: len(found)], strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=2e-5 * max(1.0, float(want.abs().max())))
