"""Small parts of the kernels: ties in the pool, limits of classes and tiles, and what happens around a launch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedsmoo.core.errors import FedsmooError


def test_the_first_of_equal_numbers_wins_a_pool(device):
    """As in PyTorch; where relu leaves nothing, no tap is taken, a zero itself among them."""
    from fedsmoo.kernels.resnet18.stem import NOT_TAKEN, pool

    channels = 4  # the normalised numbers are small and whole, so that most windows have ties
    xhat = torch.arange(1 * 2 * 8 * 8 * channels).reshape(1, 2, 8, 8, channels).remainder(3).float() - 1
    xhat[0, 1] = 0.0
    p = torch.tensor([[1.0, 2.0, 0.5, -1.0, 0.0, 0.0, 0.0, 0.0]])  # gamma, then beta
    out = torch.full((1, 2, 4, 4, channels), 7.0)
    taken = torch.full(out.shape, 77, dtype=torch.uint8)
    tensors = [t.to(device) for t in (xhat, p, out, taken)]
    pool(tensors[0], tensors[1], 0, tensors[2], tensors[3], rows=16)
    z = torch.relu(xhat * p[0, :channels])[0].permute(0, 3, 1, 2)
    best, where = F.max_pool2d(z, 3, 2, 1, return_indices=True)
    assert torch.equal(tensors[2][0].cpu(), best.permute(0, 2, 3, 1))
    h, v = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    tap = 3 * (where // 8 - (2 * h - 1)) + (where % 8 - (2 * v - 1))
    expected = torch.where(best > 0, tap, NOT_TAKEN).permute(0, 2, 3, 1)
    assert torch.equal(tensors[3][0].cpu().long(), expected)
    assert set(tensors[3][0, 1].unique().tolist()) == {NOT_TAKEN}


def test_the_last_layer_holds_so_many_classes(device):
    from fedsmoo.kernels.resnet18.head import padded_classes
    from fedsmoo.kernels.resnet18.shapes import MOST_CLASSES

    assert [padded_classes(n) for n in (1, 10, 16, 17, 100)] == [16, 16, 16, 32, 128]
    assert padded_classes(MOST_CLASSES) >= MOST_CLASSES
    for classes in (0, MOST_CLASSES + 1):
        with pytest.raises(FedsmooError, match="classes"):
            padded_classes(classes)


def test_a_tile_fits_what_it_divides(device):
    from fedsmoo.kernels.resnet18.tiles import Tile

    tile = Tile(9, 8, 4, 4, 2)
    tile.fits("map", cols=16, inner=8)
    tile.fits("map", cols=16, inner=8, rows=18, group=4, pixels=3)
    wrong = [{"cols": 12}, {"inner": 6}, {"rows": 10}, {"group": 3}, {"pixels": 2}]
    for change in wrong:
        with pytest.raises(FedsmooError, match="does not fit the map"):
            tile.fits("map", **({"cols": 16, "inner": 8} | change))


def test_launches_are_noted_compiled_or_run(device, monkeypatch):
    from fedsmoo.kernels.runtime import compiling, launch, noting

    class Kernel:
        done: list = []

        def __getitem__(self, grid):
            return lambda *args, **meta: self.done.append(("run", grid, args, meta))

        def warmup(self, *args, grid, **meta):
            self.done.append(("compiled", grid, args, meta))

    kernel = Kernel()
    with noting() as noted:
        launch(kernel, (1, 2), 3, warps=4)
    assert noted == [(kernel, (1, 2), (3,), {"warps": 4})]
    assert kernel.done == []
    with compiling(1):
        launch(kernel, (5,), 6)
    launch(kernel, (7,), 8, stages=9)
    assert kernel.done == [("compiled", (5,), (6,), {}), ("run", (7,), (8,), {"stages": 9})]


def test_without_a_gpu_the_side_stream_is_the_only_one():
    from fedsmoo.kernels.streams import SideStream

    stream, done = SideStream(torch.device("cpu"), apart=True), []
    with stream.beside():
        done.append(1)
    stream.join()
    assert (stream.stream, done) == (None, [1])
