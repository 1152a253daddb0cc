"""What a step of a module moves, and the ways to do it: shapes, inputs, and the fewest bytes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.gpu.modules import BATCH, CLIENTS, MODULES
from fedsmoo.kernels import cast, embedding, place
from fedsmoo.kernels.conv import choose
from fedsmoo.kernels.conv.geometry import Geometry
from fedsmoo.kernels.recurrent import steps as recurrence
from fedsmoo.kernels.recurrent import whole
from fedsmoo.operators.cast import rounded
from fedsmoo.operators.embedding import embedding_weight

INPUTS = {"lstm": (80,), "bert": (128,)}  # indices; the others take images of 3x32x32
PRODUCTS = nn.Conv2d, nn.Linear, nn.LSTM, nn.MultiheadAttention  # whose weights are read in bf16
TILES: dict[str, list[tuple[Any, ...]]] = {
    "place": [
        (32, 64, 8, False, True), (32, 64, 8, True, True), (64, 64, 8, True, True), (32, 64, 4, True, True),
        (128, 64, 8, True, True), (32, 64, 8, True), (64, 64, 8),
    ],
    "cast": [(64, 64, 8), (64, 64, 4), (32, 64, 8)],
}  # fmt: skip
BLOCKS: list[dict[str, int]] = [{}, {"BH": 32}, {"BR": 64}, {"BR": 16}, {"num_warps": 8}]
WARPS = (8, 4, 16)

Way = Callable[..., Any]  # takes one set of inputs, returns a tensor or several


class Job(NamedTuple):
    """Something to be done: its ways, the first of which is today's, inputs, and the fewest bytes that it moves."""

    what: str
    name: str
    ways: dict[str, Way]
    inputs: Callable[[], tuple[Any, ...]]
    bytes: int
    near: float  # how far results may be from today's, as a share of their largest number


def convolutions(module: nn.Module, x: Tensor) -> dict[nn.Module, tuple[Tensor, Tensor]]:
    """Return what each convolution of a module takes and makes of one sample."""
    found = {}

    def note(layer: nn.Module, given: Any, out: Tensor) -> None:
        found[layer] = given[0], out

    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(note)
    with torch.no_grad():
        module(x)
    return found


def parameters(name: str) -> Iterator[tuple[Tensor, nn.Module, tuple[Tensor, Tensor] | None]]:
    """Yield the parameters of a module of the table, their layers, and what convolutions take and make of a sample."""
    module = MODULES[name][0]()
    x = torch.zeros(1, *INPUTS[name], dtype=torch.int64) if name in INPUTS else torch.zeros(1, 3, 32, 32)
    maps = convolutions(module.eval(), x)
    for layer in module.modules():
        for p in layer.parameters(recurse=False):
            yield p, layer, maps.get(layer)


def weights(name: str) -> tuple[list[cast.Weight], int]:
    """Return the weights that products read in bf16, and the length of a client's row of all."""
    found, start, there = [], 0, 0
    for p, layer, maps in parameters(name):
        if isinstance(layer, PRODUCTS):
            is_kernel = maps is not None and p.dim() == 4
            outside, inside, taps = (len(p), p.shape[1], p[0, 0].numel()) if is_kernel else (p.numel(), 1, 0)
            found.append(cast.Weight(start, there, taps, inside, outside, taps * inside if taps else 1))
            there += rounded(found[-1].size)
        start += p.numel()
    return found, start


def gradients(name: str, device: str, clients: int, batch: int) -> list[Tensor]:
    """Return gradients as kernels leave them: convolutions' in parts, of float32 unless alone, others as a row."""
    found = []
    for p, layer, maps in parameters(name):
        if maps is not None and p.dim() == 4:
            assert isinstance(layer, nn.Conv2d)
            g = Geometry(*(tuple(v) for v in (layer.kernel_size, layer.stride, layer.padding)))  # type: ignore[arg-type]
            x, dy = (
                torch.empty(clients, batch, *v.shape[2:], v.shape[1], dtype=torch.bfloat16, device=device) for v in maps
            )
            parts = choose.parts_of(g, x, dy, "tf32")
            shape, kind = (parts, clients, g.taps, p.shape[1], len(p)), torch.float32 if parts > 1 else torch.bfloat16
        else:
            shape = (clients, 1, p.numel())  # type: ignore[assignment]
            kind = torch.bfloat16 if isinstance(layer, PRODUCTS) and p.dim() > 1 else torch.float32
        found.append(torch.randn(shape, device=device).to(kind))
    return found


def said(tile: place.Tile) -> str:
    """Return a tile in words."""
    return f"{tile.rows}x{tile.cols} by {tile.warps} warps" + ", spread" * tile.spread + ", apart" * tile.apart


def moves(name: str, device: str, clients: int, batch: int) -> Iterator[Job]:
    """Yield the casts and placements of a module."""
    fields, size = weights(name)
    width = rounded(max(f.there + f.size for f in fields))

    @cache  # a buffer for each way, whose gaps between weights stay zero
    def buffer(tile: cast.Tile) -> Tensor:
        return torch.zeros(clients, width, dtype=torch.bfloat16, device=device)

    def as_cast(tile: cast.Tile, w: Tensor) -> Tensor:
        cast.cast(w, fields, buffer(tile), tile)
        return buffer(tile)

    def as_placed(tile: place.Tile, *sources: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
        out = sources[0].new_empty(clients, size, dtype=kind)
        place.place(sources, out, tile)
        return out

    def tiles(way: Any, today: Any, others: list[tuple[Any, ...]]) -> dict[str, Way]:
        return {"today": partial(way, today)} | {said(place.Tile(*t)): partial(way, place.Tile(*t)) for t in others}

    moved = clients * 6 * sum(f.size for f in fields)  # read in float32, written in bf16
    draw = partial(torch.randn, clients, size, device=device)
    yield Job("cast", name, tiles(as_cast, cast.TODAY, TILES["cast"]), lambda: (draw(),), moved, 0.0)
    sample = gradients(name, device, clients, batch)
    moved = sum(v.numel() * v.itemsize for v in sample) + 4 * clients * size
    ways = tiles(as_placed, place.TODAY, TILES["place"])
    yield Job("place", name, ways, lambda: tuple(torch.randn_like(v) for v in sample), moved, 0.0)
    moved -= 2 * clients * size
    ways = {"today": partial(as_placed, place.TODAY, kind=torch.bfloat16)}
    yield Job("place", f"{name}, into bf16", ways, lambda: tuple(torch.randn_like(v) for v in sample), moved, 0.0)


def gather(device: str, clients: int, batch: int, samples: int = 5000) -> Job:
    """Return the gather of a batch of images."""
    shape = (3, 32, 32)

    def copied(x: Tensor, at: Tensor) -> Tensor:
        return x.new_empty(clients, batch, *shape).copy_(x[at])

    def selected(x: Tensor, at: Tensor) -> Tensor:
        out = x.new_empty(clients, batch, *shape)
        torch.index_select(x, 0, at.flatten(), out=out.flatten(0, 1))
        return out

    def drawn() -> tuple[Tensor, Tensor]:
        x = torch.randn(samples, *shape, device=device)
        return x, torch.randint(samples, (clients, batch), device=device)

    moved = 8 * clients * batch * 3 * 32 * 32
    return Job("gather", "images", {"today": copied, "index_select": selected}, drawn, moved, 0.0)


def embeddings(device: str, clients: int, places: int, rows: int, width: int, name: str, often: bool = False) -> Job:
    """Return the gradient of an embedding."""

    def listed(how: dict[str, int], dy: Tensor, index: Tensor) -> Tensor:
        found = embedding.embedding_weight(dy, index, rows, **how)
        return found.squeeze(1) if found.shape[1] == 1 else found.sum(1)

    def today(dy: Tensor, index: Tensor) -> Tensor:
        return embedding_weight(dy, index, rows, False)

    def placed(way: Way, dy: Tensor, index: Tensor) -> Tensor:
        out = dy.new_empty(clients, rows * width)
        place.place([way(dy, index).flatten(1).unsqueeze(1)], out)
        return out.unflatten(1, (rows, width))

    def direct(dy: Tensor, index: Tensor) -> Tensor:
        out = dy.new_empty(clients, rows * width)
        embedding.embedding_weight(dy, index, rows, out)
        return out.unflatten(1, (rows, width))

    def drawn() -> tuple[Tensor, Tensor]:
        share = torch.rand(clients, places, device=device)
        index = (rows ** (share if often else 1)) * (1 if often else share)
        dy = torch.randn(clients, places, width, device=device)
        return dy, index.long().clamp(0, rows - 1)

    ways: dict[str, Way] = {"today": today}
    for how in BLOCKS:
        ways[" ".join(["listed", *(f"{k}={v}" for k, v in how.items())])] = partial(listed, how)
    if embedding.parts_of(clients, places, rows, width, embedding.tile(rows, width)) == 1:
        ways |= {"today, placed": partial(placed, today), "listed, placed": partial(placed, partial(listed, {}))}
        ways["listed into its place"] = direct
    moved = 4 * clients * (places * width + rows * width + places)
    return Job("embedding", name, ways, drawn, moved, 1e-5)


def recurrences(device: str, clients: int, samples: int, steps: int, hidden: int) -> Iterator[Job]:
    """Yield the steps of a layer of an LSTM, forward and backward."""
    new = partial(torch.randn, device=device)
    kind = torch.bfloat16 if device == "cuda" else torch.float32  # interpreted, products are of float32

    def given() -> tuple[Tensor, ...]:
        gx = new(clients, steps, samples, 4 * hidden).transpose(0, 1)
        w, b = new(clients, 4 * hidden, hidden) / hidden**0.5, new(clients, 4 * hidden)
        h0, c0 = new(clients, samples, hidden), new(clients, samples, hidden)
        return tuple(v.to(kind) for v in (gx, w, b, h0, c0))

    def back() -> tuple[Tensor, ...]:
        gx, w, b, h0, c0 = given()
        dh = new(clients, steps, samples, hidden).transpose(0, 1).to(kind)
        return dh, *recurrence.forward("lstm", gx, w, b, h0, c0, "tf32"), w, h0, c0, torch.zeros_like(c0)

    def forward(warps: int, *inputs: Tensor) -> Any:
        with AtOnce(warps):
            return recurrence.forward("lstm", *inputs, "tf32")  # type: ignore[call-arg, arg-type]

    def backward(warps: int, *inputs: Tensor) -> Any:
        with AtOnce(warps):
            return recurrence.backward("lstm", True, *inputs, "tf32")  # type: ignore[call-arg, arg-type]

    each = clients * samples * hidden * 2 * steps  # bytes of one number for every unit
    kept = clients * 4 * hidden * hidden * 2
    for name, way, inputs, moved in (
        ("forward", forward, given, 10 * each + kept), ("backward", backward, back, 12 * each + 2 * kept),
    ):  # fmt: skip
        ways = {"today": partial(way, 0)} | {f"whole, {n} warps": partial(way, n) for n in WARPS}
        yield Job("recurrence", f"{name}, {steps} steps of {hidden}", ways, inputs, moved, 0.05)


class AtOnce:
    """Within it, recurrences are one launch of so many warps; of none: as they are today."""

    def __init__(self, warps: int) -> None:
        self.warps, self.kept = warps, (whole.serves, whole.tile)

    def __enter__(self) -> None:
        warps, tile = self.warps, self.kept[1]
        whole.serves = lambda *_: warps > 0
        whole.tile = lambda *sizes: tile(*sizes) | {"num_warps": warps}

    def __exit__(self, *_: object) -> None:
        whole.serves, whole.tile = self.kept


def jobs(only: list[str], device: str = "cuda") -> Iterator[Job]:
    """Yield all jobs of some kinds."""
    for name in MODULES:
        if (name != "bert" or importlib.util.find_spec("transformers")) and {"cast", "place"} & {*only}:
            yield from (job for job in moves(name, device, CLIENTS, BATCH) if job.what in only)
    if "gather" in only:
        yield gather(device, CLIENTS, BATCH)
    if "embedding" in only:
        for often in (False, True):
            said = ", often" if often else ""
            yield embeddings(device, CLIENTS, BATCH * 128, 30522, 128, f"words of BERT-tiny{said}", often)
            yield embeddings(device, CLIENTS, BATCH * 80, 90, 8, f"characters of the LSTM{said}", often)
        yield embeddings(device, CLIENTS, 128, 512, 128, "places of BERT-tiny")
    if "recurrence" in only:
        yield from recurrences(device, CLIENTS, BATCH, 80, 256)
