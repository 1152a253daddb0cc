"""Small parts of the kernels: ties in the pool, limits of classes and tiles, and what happens around a launch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedsmoo.core.errors import FedsmooError


def test_the_first_of_equal_numbers_wins_a_pool(device):
    """As in PyTorch; where relu leaves nothing, no tap is taken, a zero itself among them."""
    from fedsmoo.kernels.resnet18.pool import NOT_TAKEN
    from fedsmoo.kernels.resnet18.shapes import live_conv, stored_images
    from fedsmoo.kernels.resnet18.stem import stem_forward
    from fedsmoo.kernels.resnet18.tiles import Tile

    channels, shape = 16, (1, 2, 8, 8, 16)
    images = torch.ones(1, 2, 16, 16, 3)  # of one colour: most windows of their convolution have ties
    images[0, 1] = 0.0
    w = torch.ones(1, 147 * channels).cumsum(1).remainder(7)
    p = torch.cat([torch.ones(1, channels), torch.zeros(1, channels)], dim=1)  # gamma, then beta
    xhat, rstd, out = torch.zeros(shape), torch.zeros(1, 2, 1), torch.full((1, 2, 4, 4, channels), 7.0)
    taken = torch.full(out.shape, 77, dtype=torch.uint8)
    given = [t.to(device) for t in (stored_images(images, torch.float32), w, p, xhat, rstd, out, taken)]
    conv = live_conv("conv1", 3, channels, 7, 2, 16)
    stem_forward(conv, given[0], given[1], 0, given[2], 0, *given[3:], Tile(64, channels, 32, 4, 2))
    xhat, out, taken = (given[i][0].cpu() for i in (3, 5, 6))
    best, where = F.max_pool2d(torch.relu(xhat).permute(0, 3, 1, 2), 3, 2, 1, return_indices=True)
    assert torch.equal(out, best.permute(0, 2, 3, 1))
    h, v = torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
    tap = 3 * (where // 8 - (2 * h - 1)) + (where % 8 - (2 * v - 1))
    assert torch.equal(taken.long(), torch.where(best > 0, tap, NOT_TAKEN).permute(0, 2, 3, 1))
    assert len(taken[0].unique()) > 2
    assert set(taken[1].unique().tolist()) == {NOT_TAKEN}
    inside = xhat[0, 2:6, 2:6]  # where no tap is outside of the image: equal numbers
    assert torch.equal(inside, inside[:1, :1].expand_as(inside))


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
