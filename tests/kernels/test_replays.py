"""``benchmarks/kernels/replays.py`` names the first buffer of a gradient that has other bits."""

import pytest
import torch


@pytest.mark.parametrize("changed", [("out", "layer2.0.conv1 out"), ("dy", "layer2.0.conv1 dy"), (None, None)])
def test_the_first_buffer_that_differs_is_named(changed, device):
    from benchmarks.kernels.replays import QUEUED, differences
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    gradient = ResNet18Gradient(1, 2, 10, device, "bf16", boxes=False)
    out = gradient.output(torch.zeros(1, gradient.layout.size, dtype=gradient.dtype, device=device))
    part, name = changed
    count = 0

    def replay():
        nonlocal count
        count += 1
        if part is not None and count == 1 + 2 * QUEUED:  # just before the second of three looks
            bits = getattr(gradient.buffers.blocks[2].first, part).view(torch.int16)
            bits[0, 1, 2, 3, 4] ^= 1
            out.loss.add_(1)  # later in the order

    assert differences(gradient, out, replay, 3) == ({name: 2} if name else {})
