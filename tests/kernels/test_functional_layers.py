"""Layers of fedsmoo.operators.functional by our kernels in float32, against PyTorch in float64, client by client."""

import pytest
import torch
from operators.test_functional import CASES, tensors, total

from fedsmoo.operators import convolution, norm, recurrence
from fedsmoo.operators.groups import grouped

CLIENTS = 2
NAMES = [
    "conv2d", "conv2d: one sample, one pixel", "conv2d: primes, uneven strides", "conv2d: groups",
    "conv2d: of each channel", "conv2d: wide groups", "conv1d", "conv_transpose2d", "group_norm", "lstm",
    "gru without biases", "rnn_cell",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients(name, device, monkeypatch):
    if device == "cpu":  # the interpreter's, which knows no other precision
        for module in (convolution, grouped, norm, recurrence):
            monkeypatch.setattr(module, "by_kernels", lambda x: x.dtype == torch.float32)
        for module in (convolution, recurrence):
            monkeypatch.setattr(module, "precision_of", lambda x: "ieee")
    ours, theirs, shapes = CASES[name]
    given = [t.float().to(device).requires_grad_() for t in tensors(shapes, CLIENTS, name)]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        losses = total(ours(*given), 1)
        found = torch.autograd.grad(losses.sum(), given)
    for c in range(CLIENTS):
        alone = [t[c].detach().double().requires_grad_() for t in given]
        loss = total(theirs(*alone), 0)
        torch.testing.assert_close(losses[c].double(), loss, rtol=1e-5, atol=1e-5)
        for got, want in zip(found, torch.autograd.grad(loss, alone), strict=True):
            torch.testing.assert_close(got[c].double(), want, rtol=0, atol=1e-5 * max(1.0, float(want.abs().max())))
