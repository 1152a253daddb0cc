"""Tiles that the benchmarks try are such as the kernels take."""

from itertools import zip_longest

import pytest
import torch


@pytest.fixture
def resnet18(device, monkeypatch):
    """The module of the gradient, on a CPU: nothing runs, launches are noted."""
    from fedsmoo.kernels.resnet18 import gradient

    monkeypatch.setattr(gradient, "require", lambda device: None)
    return gradient


def test_every_tile_of_tf32_divides_what_it_has_to(resnet18):
    from benchmarks.kernels.candidates import tf32_tiles
    from fedsmoo.kernels.resnet18.shapes import STORED
    from fedsmoo.kernels.resnet18.tiles import TABLES
    from fedsmoo.kernels.runtime import noting

    tried = {key: tf32_tiles(key) for key in TABLES["tf32"]}
    assert all(tiles[0] == TABLES["tf32"][key] for key, tiles in tried.items())
    assert all(len(tiles) > 10 and {t.warps for t in tiles} > {4} for tiles in tried.values())
    for turn in zip_longest(*tried.values()):
        tiles = {key: tile for key, tile in zip(tried, turn, strict=True) if tile is not None}
        with noting() as noted:
            gradient = resnet18.ResNet18Gradient(1, 2, 10, "cpu", "tf32", tiles)
            w, weight = torch.zeros(1, gradient.layout.size), torch.zeros(1, 2)
            gradient(w, torch.zeros(1, 2, *STORED), weight.long(), weight)
        assert len(noted) > 60


def test_the_launch_that_is_timed_has_the_tile(resnet18, monkeypatch):
    from benchmarks.kernels import tiles
    from benchmarks.kernels.candidates import tf32_tiles
    from fedsmoo.kernels.resnet18.tiles import TABLES

    monkeypatch.setattr(tiles, "BATCH", 2)
    for key in TABLES["tf32"]:
        tile = tf32_tiles(key)[-1]
        (_, _, _, how), _ = tiles.the_launch((key, tile, 2, "tf32"), "cpu")
        assert (how["BN"], how["BK"], how["num_warps"]) == (tile.cols, tile.inner, tile.warps)
        assert how["PRECISION"] == "tf32"
        assert how.get("ACROSS", tile.across) == tile.across


def test_the_fastest_tile_stands_beside_the_tables_own(device):
    from benchmarks.kernels.tiles import fastest

    rows = [{"us": us, "table": us == 3.0} for us in (2.0, 3.0, 1.5)]
    assert fastest(rows) == (rows[2], 3.0)
    assert fastest(rows[:1]) == (rows[0], None)
