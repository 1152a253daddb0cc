"""Norms of the modules of docs/gpu.md as their steps call them: what runs today, and what could, on one GPU.

PYTHONPATH=src python3 -m benchmarks.kernels.norms --out norms.json
PYTHONPATH=src python3 -m benchmarks.kernels.norms --only vit,bert --out norms.json

10 clients of 50 samples, bf16. Each way is captured as a CUDA graph and replayed over several sets of inputs, so that
neither the host nor the cache counts. Results are checked against PyTorch in float64 (LayerNorm) or today's tile
(GroupNorm) before they are timed. ``limit`` is the bytes that must be read and written, each in its own type, at
4.2 TB/s. What was found in the code that PyTorch's compiler makes of traced graphs, and what is expected, untimed:

- A transformer's residual stream is float32 (a float32 parameter is added to the first product): its norms move about
  twice the bytes that docs/gpu.md counts.
- LayerNorm, forward. One generated kernel adds the branch, normalises, scales and rounds for the next product. It reads
  what it must, some of it twice, and some of these kernels write the normalised rows for the backward beside the sum.
  There is no candidate: an operator of ours would keep the compiler from fusing what is around it.
- LayerNorm, backward. Three kinds of generated kernels: one for the gradient by the inputs, which goes over each row
  twice; one for sums over rows, which reads the gradient again, and the inputs or what they are the sum of, by columns,
  in runs of 128 rows; and one launch for each gamma and beta that adds up the runs. The operator reads everything once,
  and its runs are added up where gradients are placed. It cannot fuse what the compiler could, such as a transposed
  copy behind it. Expected to take less than half as long where the gradient comes from one product (a ViT), and to gain
  less where several gradients are added up first (BERT).
- GroupNorm. Groups that fit registers are read once, others twice, the second time mostly from the cache; of blocks'
  ends, added maps, kept gradients and outputs are read and written on the way, which the table counts elsewhere. Tiles
  were searched before: little is expected of others.

A width goes into ``TILES`` (fedsmoo/kernels/norms/layer.py) if this finds it faster in every case of it, and rounds of
whole modules (benchmarks/gpu/modules.py) do, too.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from benchmarks.kernels.timing import captured, milliseconds
from fedsmoo.kernels.norms import group, layer
from fedsmoo.kernels.norms.layer import Tile, padded
from fedsmoo.kernels.runtime import compiling, launch, noting
from fedsmoo.runs.origin.provenance import code_facts

BANDWIDTH, CACHE, STEPS = 4.2e12, 150e6, 50
Call = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Rows:
    """The backward of a LayerNorm: what it is given, and how often a step calls it."""

    module: str
    name: str
    times: int
    shape: torch.Size  # clients, samples, tokens, width
    coarse: bool  # whether its gradient is a product's, in bfloat16
    turned: bool  # whether that has tokens before samples in memory
    more: bool  # whether a residual's gradient is added

    def given(self, device: str, seed: int) -> tuple[Tensor | None, ...]:
        draw = torch.Generator(device).manual_seed(seed)
        clients, width = self.shape[0], self.shape[-1]
        x, dy, more = (torch.randn(self.shape, generator=draw, device=device) for _ in range(3))
        x = 3 * x + 1
        gamma = torch.randn(clients, width + 5, generator=draw, device=device)[:, 2:-3]
        _, mean, rstd = torch.native_layer_norm(x, [width], None, None, 1e-5)
        dy = dy.transpose(1, 2).contiguous().transpose(1, 2) if self.turned else dy
        return dy.bfloat16() if self.coarse else dy, x, gamma, mean, rstd, more if self.more else None

    @property
    def bytes(self) -> int:
        each = (2 if self.coarse else 4) + 4 + 4 * self.more + 4 + 2  # the gradient, inputs, more; results, twice
        return self.shape[:-1].numel() * (self.shape[-1] * each + 8)

    def ways(self, given: tuple[Any, ...]) -> Iterator[tuple[str, Call]]:
        yield "today", lambda: compiled(plain)(*given)
        for tile in tiles(self.shape[-1]):
            yield str(tuple(tile)), partial(by_operator, given, tile)

    def truth(self, given: tuple[Any, ...], found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        dy, x, gamma, mean, rstd, more = (None if v is None else v.double() for v in given)
        return plain(dy, x, gamma, mean, rstd, more)  # type: ignore[arg-type]


class Forward(Rows):
    """The forward behind a residual connection: for comparison, there is nothing else to try."""

    @property
    def bytes(self) -> int:
        return self.shape[:-1].numel() * (self.shape[-1] * (4 + 2 + 4 + 2) + 8)

    def ways(self, given: tuple[Any, ...]) -> Iterator[tuple[str, Call]]:
        yield "today", lambda: compiled(forward)(*given[:3])

    def truth(self, given: tuple[Any, ...], found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return forward(*(v.double() for v in given[:3]))


def forward(branch: Tensor, x: Tensor, gamma: Tensor) -> tuple[Tensor, ...]:
    """What the traced graph computes: the sum, its norm for the next product (its beta is gamma), and statistics."""
    x, gamma = x + branch, gamma[:, None, None]
    y, mean, rstd = torch.native_layer_norm(x, [x.shape[-1]], None, None, 1e-5)
    return x, (y * gamma + gamma).bfloat16(), mean, rstd


def plain(
    dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, more: Tensor | None
) -> tuple[Tensor, ...]:  # fmt: skip
    """What the traced graph computes where PyTorch's own LayerNorm is: for the compiler, or in float64."""
    d = dy.to(x.dtype)
    hat = (x - mean) * rstd
    given = d * gamma[:, None, None], x, [x.shape[-1]], mean, rstd, None, None, [True, False, False]
    dx = torch.ops.aten.native_layer_norm_backward(*given)[0]
    dx = dx if more is None else dx + more
    return dx, (hat * d).sum((1, 2)), d.sum((1, 2)), dx.bfloat16()


def by_operator(given: tuple[Any, ...], tile: Tile) -> tuple[Tensor, ...]:
    """The operator, and sums of its parts, which a round makes where it places gradients."""
    dx, dgamma, dbeta, coarse = layer.backward(*given, True, tile)
    return dx, dgamma.sum(1), dbeta.sum(1), coarse


def tiles(width: int) -> list[Tile]:
    """The tiles that are tried: a row or two to a warp, few and many warps, one wave of programs or two."""
    cols = padded(width)
    shapes = {(warps * rows, warps) for warps in (1, 2, 4, 8) for rows in (1, 2) if cols * rows <= 32 * 16}
    shapes |= {layer.plain_tile(width)[:2]}
    return [Tile(r, w, n) for r, w in sorted(shapes) for n in (4, 8, 16) if n * w <= 64]


@dataclass(frozen=True)
class Maps:
    """A GroupNorm of two groups with what stands behind it: a ReLU, or the end of a residual block."""

    module: str
    name: str
    times: int
    shape: torch.Size  # clients, samples, pixels, channels
    end: bool
    back: bool

    def given(self, device: str, seed: int) -> tuple[Tensor, ...]:
        draw = torch.Generator(device).manual_seed(seed)
        x, dy, other = (torch.randn(self.shape, generator=draw, device=device).bfloat16() for _ in range(3))
        gamma, beta = (torch.randn(self.shape[0], self.shape[-1], generator=draw, device=device) for _ in range(2))
        return x, dy, other, gamma, beta

    @property
    def bytes(self) -> int:
        maps = (6 if self.end else 3) if self.back else (3 if self.end else 2)
        return 2 * maps * self.shape.numel()

    def ways(self, given: tuple[Any, ...]) -> Iterator[tuple[str, Call]]:
        x, dy, other, gamma, beta = given
        with noting() as noted:
            y, mean, rstd = group.forward(x, gamma, beta, 2, 1e-5, other if self.end else None, True)
            back = (dy, x, gamma, mean, rstd, 2)
            found = group.backward(*back, y, other, True) if self.end else group.backward(*back, beta=beta)
        if self.back:
            launch(*noted[0][:2], **noted[0][3])  # makes the outputs and statistics that the backward reads
        kernel, grid, _, meta = noted[int(self.back)]
        results = tuple(found if self.back else (y, mean, rstd))
        todays = {n: meta[n] for n in ("BP", "WHOLE", "num_warps")}
        for how in (todays, *(v for v in self.changes(meta) if v != todays)):
            name = "today" if how == todays else f"{how['BP']} pixels, {how['num_warps']} warps"

            def call(how: dict[str, Any] = how) -> tuple[Tensor, ...]:
                launch(kernel, grid, **(meta | how))
                return results

            yield name + (", whole" if how["WHOLE"] and how != todays else ""), call

    def changes(self, meta: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Other pixels of a tile, and warps; a whole group where a program's registers could hold it."""
        pixels = triton.next_power_of_2(self.shape[2])
        for numbers in (2**12, 2**13, 2**14, pixels * meta["BC"]):
            rows = min(pixels, max(1, numbers // meta["BC"]))
            for warps in (4, 8, 16):
                if 8 <= rows * meta["BC"] // (32 * warps) <= (32 if self.back else 64):
                    yield {"BP": rows, "WHOLE": rows == pixels, "num_warps": warps}

    def truth(self, given: tuple[Any, ...], found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(v.clone() for v in found)  # today's, which tests hold to PyTorch


@cache
def compiled(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    return torch.compile(function, dynamic=False)


def cases() -> list[Rows | Maps]:
    vit, bert = torch.Size((10, 50, 64, 192)), torch.Size((10, 50, 128, 128))
    found: list[Rows | Maps] = [
        Forward("vit", "LayerNorm behind a sum, forward", 12, vit, True, False, False),
        Forward("bert", "LayerNorm behind a sum, forward", 5, bert, True, False, False),
        Rows("vit", "LayerNorm before a product, backward", 12, vit, True, False, True),
        Rows("vit", "LayerNorm before attention with masks, backward", 0, vit, True, True, True),  # turns samples
        Rows("bert", "LayerNorm behind a branch, backward", 5, bert, False, False, False),
    ]
    for side, channels in ((32, 64), (16, 128), (8, 256), (4, 512)):
        shape = torch.Size((10, 50, side * side, channels))
        for back in (False, True):
            for end in (False, True):
                where = f"GroupNorm of {channels} channels, {'end of a block' if end else 'a ReLU'}"
                times = 2 + (channels == 64 and not end)  # the stem's
                found.append(Maps("resnet", f"{where}, {'backward' if back else 'forward'}", times, shape, end, back))
    return found


def error(found: tuple[Tensor, ...], truth: tuple[Tensor, ...]) -> float:
    """The largest error of a result, by its norm; nan where one is."""
    pairs = [(v.double(), t.double()) for v, t in zip(found, truth, strict=True) if t.numel()]
    return float(torch.stack([(v - t).norm() / t.norm() for v, t in pairs]).max())


def measure(case: Rows | Maps, deadline: float, device: str = "cuda") -> list[dict[str, Any]]:
    """Check and time all ways of a case, today's first, until the time is up."""
    sets = [case.given(device, seed) for seed in range(max(2, -(-int(CACHE) // case.bytes)))]
    ways = [dict(case.ways(given)) for given in sets]
    with compiling(min(16, len(os.sched_getaffinity(0)))):
        for name, call in ways[0].items():
            if name != "today" or isinstance(case, Maps):
                call()
    rows, truth = list[dict[str, Any]](), tuple[Tensor, ...]()
    for name, call in ways[0].items():
        if time.perf_counter() > deadline:
            print(f"  the time is up: {case.module}, {case.name} from {name} on was not measured", flush=True)
            break
        try:
            found = call()
            for v in found if truth and isinstance(case, Maps) else ():
                v.fill_(float("nan"))  # today's tile has written them before
            found = call()
            truth = truth or case.truth(sets[0], found)
            wrong = error(found, truth)
            if not wrong < 0.01:
                raise ArithmeticError(f"wrong by {wrong}")
            calls = [way[name] for way in ways]
            us = milliseconds(captured(lambda c=calls: [f() for f in c]), 15.0) * 1000 / len(calls)  # type: ignore[misc]
        except Exception as e:
            print("  failed:", case.module, case.name, name, str(e).splitlines()[0][:90], flush=True)
            continue
        rows.append({**asdict(case), "way": name, "us": us, "limit_us": case.bytes / BANDWIDTH * 1e6, "error": wrong})
    return rows


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """What is fastest of each case beside today's and the limit; what a round gains; what the table could say."""
    by_case: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault((row["module"], row["name"]), []).append(row)
    lines, gains, widths = [], dict[str, float](), dict[int, list[dict[str, float]]]()
    for (module, name), found in by_case.items():
        us = {row["way"]: row["us"] for row in found}
        if "today" not in us:
            continue
        best = min(us, key=us.__getitem__)
        gains[module] = gains.get(module, 0.0) + (us["today"] - us[best]) * found[0]["times"] * STEPS / 1000
        ends = f"today {us['today']:7.1f} us, limit {found[0]['limit_us']:6.1f}, fastest {us[best]:7.1f}: {best}"
        lines.append(f"{module:7s} {name:58s} {ends}")
        if len(us) > 1 and "coarse" in found[0]:
            widths.setdefault(padded(found[0]["shape"][-1]), []).append(us)
    lines += [f"{module}: {ms:.1f} ms less in a round of {STEPS} steps" for module, ms in gains.items()]
    for width, seen in widths.items():
        both = set.intersection(*(set(us) for us in seen)) - {"today"}
        if both:
            best = min(both, key=lambda way: sum(us[way] / us["today"] for us in seen))
            faster = all(us[best] < 0.95 * us["today"] for us in seen)
            lines.append(f"TILES[{width}]: {f'Tile{best}' if faster else 'nothing that is faster in every case'}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="modules, separated by commas: vit, bert, resnet")
    parser.add_argument("--seconds", type=float, default=60.0, help="no case is begun later")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no CUDA device")
    deadline, rows = time.perf_counter() + args.seconds, list[dict[str, Any]]()
    facts = {"code": code_facts(), "hardware": torch.cuda.get_device_name()}
    for case in cases():
        if time.perf_counter() < deadline and (not args.only or case.module in args.only.split(",")):
            rows += measure(case, deadline)
            args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1))
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
