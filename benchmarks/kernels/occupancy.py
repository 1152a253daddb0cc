"""What Triton's compiler makes of every kernel of one gradient of ResNet-18-GN, of the passes of a method's step, of
noise, of recurrences, and of what modules of any kind share, without a GPU: registers, bytes spilled, shared memory,
programs that fit a multiprocessor, waves of programs on an H100 or H200, and products that a loop leaves in flight.

PYTHONPATH=src python3 -m benchmarks.kernels.occupancy --only stem,pool --out o.json  # 10 clients, bf16; all without it
PYTHONPATH=src python3 -m benchmarks.kernels.occupancy --products                     # products in flight: seconds
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.kernels.candidates import waited
from benchmarks.kernels.flight import from_registers, in_flight, lowered
from fedsmoo.compiler.step import CompiledStep
from fedsmoo.compiler.trace import StepInputs
from fedsmoo.core import LocalRule, Round, Vectors
from fedsmoo.engines.oracles.opaque import OpaqueOracle
from fedsmoo.kernels import cast, norm, place, pool, recurrence
from fedsmoo.kernels.conv import choose, conv, grouped
from fedsmoo.kernels.conv.boxes import Box
from fedsmoo.kernels.conv.geometry import Geometry
from fedsmoo.kernels.gradients import GradientBuffers
from fedsmoo.kernels.noise import by_kernel
from fedsmoo.kernels.resnet18 import gradient as resnet18
from fedsmoo.kernels.resnet18.shapes import STORED
from fedsmoo.kernels.resnet18.tiles import BOXES, MANY_CLIENTS
from fedsmoo.kernels.runtime import Launch, noting
from fedsmoo.runs.build import make_algorithm

TARGET = GPUTarget("cuda", 90, 32)
MULTIPROCESSORS, REGISTERS, SHARED, WARPS = 132, 65536, 227 * 1024, 64  # of an H100 or H200
TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8", torch.int64: "*i64", torch.int32: "*i32",
    torch.bool: "*i1",
}  # fmt: skip
TILE = ("TAPS", "STRIDE", "BM", "BN", "BK", "RB", "RH", "RW", "BACK", "TURNED", "KIND", "num_warps", "num_stages")
ALIGNED = [["tt.divisibility", 16]]


def launches(clients: int, batch: int, precision: str, way: str = "boxes") -> list[Launch]:
    """All launches of one gradient, and of logits; of bf16 by ``boxes``, boxes ``waited`` for, or ``loads``."""
    resnet18.require = lambda device: None  # nothing will run: the CPU will do
    boxes, tiles = precision == "bf16" and way != "loads", waited(BOXES) if way == "waited" else None
    with noting() as noted:
        gradient = resnet18.ResNet18Gradient(clients, batch, 10, "cpu", precision, tiles, boxes=boxes)
        gradient.early = way == "boxes"
        images = torch.zeros(clients, batch, *STORED, dtype=gradient.dtype)
        w, zeros = torch.zeros(clients, gradient.layout.size), torch.zeros(clients, batch)
        gradient(w, images, zeros.long(), zeros)
        resnet18.head_logits(gradient.features_grad.flatten(2), w, 0, torch.zeros(clients, batch, 10))
    return noted


class Idle(OpaqueOracle):
    """Passes around no gradient."""

    def launch(self, working: torch.Tensor, fine: torch.Tensor, batch: Any, into: GradientBuffers) -> None:
        pass


def passes(method: str, clients: int, precision: str) -> list[Launch]:
    """All launches of one local step of a method besides its gradients, of clients some of which have ended."""
    layout, algorithm = resnet18.live_layout(), make_algorithm(method, {})
    oracle = Idle(None, resnet18.PRECISIONS[precision][0], resnet18.fine_offset(layout))  # type: ignore[arg-type]
    with torch.device("meta"):
        rows = torch.empty(clients, layout.size)
        me = Vectors(**{n: torch.empty_like(rows) for n in (*algorithm.own, *algorithm.local)})
        down, lr = Vectors(**{n: torch.empty(layout.size) for n in algorithm.down}), torch.empty(())
        active, rule = torch.empty(clients, 1, dtype=torch.bool), LocalRule(1e-3, 10.0)
        step, rnd = torch.empty(1), Round(0, lr, torch.empty(clients, 1), 1.0)
        inputs, feeds = StepInputs(rows, me, down, rnd.at_step(step), active), [(None, active, step)] * 2
        made = CompiledStep(oracle, algorithm, rule, inputs, torch.empty_like(rows), feeds, torch.empty(clients))
    with noting() as noted:
        made.step(odd=False, last=True)
    return noted


def noise(clients: int) -> list[Launch]:
    """The launches that draw normals and uniforms for every client."""
    keys, like = torch.zeros(clients, 2, dtype=torch.int64), torch.zeros(resnet18.live_layout().size)
    with noting() as noted:
        for kind in ("normal", "uniform"):
            by_kernel(keys, keys[:, 0], "noise", kind, like)
        by_kernel(keys, keys[:, 0], "noise", "below", like.bool(), None, 0.9)
    return noted


def recurrences(clients: int, samples: int, precision: str, steps: int = 3, hidden: int = 256) -> list[Launch]:
    """The launches of some steps of recurrences, forward and backward."""
    dtype, how = resnet18.PRECISIONS[precision]
    with noting() as noted:
        for kind in recurrence.GATES:
            new = partial(torch.zeros, clients, dtype=dtype)
            wide = recurrence.GATES[kind] * hidden
            gx, dh = (new(steps, samples, n).transpose(0, 1) for n in (wide, hidden))
            w, b, state = new(wide, hidden), new(wide), new(samples, hidden)
            found = recurrence.forward(kind, gx, w, b, state, state, how)
            recurrence.backward(kind, True, dh, *found, w, state, state, state, how)
    return noted


CONVOLUTIONS = (
    # channels, outputs, side, kernel, stride: every tile by boxes, then those without (three channels, twenty, strides)
    (64, 64, 32, 3, 1), (128, 64, 16, 3, 1), (128, 128, 16, 3, 1), (512, 512, 4, 3, 1), (64, 64, 8, 1, 1),
    (3, 64, 32, 3, 1), (20, 50, 12, 5, 1), (64, 128, 32, 3, 2),
)  # fmt: skip


def convolutions(clients: int, samples: int, precision: str, turned: bool = False) -> list[Launch]:
    """The launches of convolutions of any shape, forward and backward, as on a device that brings boxes."""
    choose.interpreted = lambda: True  # asks no device what it has
    choose.Box = partial(Box, turned=turned)  # type: ignore[misc]
    dtype, how = resnet18.PRECISIONS[precision]
    with noting() as noted:
        for inside, outside, side, kernel, stride in CONVOLUTIONS:
            g = Geometry((kernel, kernel), (stride, stride), (kernel // 2, kernel // 2))
            x = torch.zeros(clients, samples, side, side, inside, dtype=dtype)
            w = torch.zeros(clients, kernel, kernel, inside, outside, dtype=dtype)
            y = choose.forward(g, x, w, how)
            choose.data(g, y, w, (side, side), how)
            choose.weight_parts(g, x, y, how, choose.parts_of(g, x, y, how))
    return noted


# channels, outputs, groups, side, kernel, stride: of each channel alone, of few, odd sizes
GROUPED = (128, 128, 128, 32, 3, 1), (96, 96, 96, 16, 7, 1), (128, 128, 32, 16, 3, 1), (35, 21, 7, 9, 5, 2)


def groups(clients: int, samples: int, precision: str) -> list[Launch]:
    """The launches of convolutions whose groups have few channels, forward and backward."""
    with noting() as noted:
        for inside, outside, count, side, kernel, stride in GROUPED:
            g = Geometry((kernel, kernel), (stride, stride), (kernel // 2, kernel // 2))
            x = torch.zeros(clients, samples, side, side, inside, dtype=resnet18.PRECISIONS[precision][0])
            w = x.new_zeros(clients, kernel, kernel, inside // count, outside)
            y = grouped.forward(g, x, w, count, torch.zeros(clients, outside), True)
            grouped.data(g, y, w, count, (side, side))
            grouped.weight_parts(g, x, y, count, grouped.parts_of(g, x, y, count))
    return noted


def far(clients: int, samples: int, precision: str) -> list[Launch]:
    """Convolutions as of images with more numbers than 32 bits count; from now on all are taken for such."""
    conv.REACH = 0
    return convolutions(clients, samples, precision) + groups(clients, samples, precision)


def general(clients: int, samples: int, precision: str) -> list[Launch]:
    """The launches of a GroupNorm, a pool and of gradients that are brought to their places."""
    x = torch.zeros(clients, samples, 256, 64, dtype=resnet18.PRECISIONS[precision][0])
    gamma = torch.zeros(clients, 64)
    with noting() as noted:
        y, mean, rstd = norm.forward(x, gamma, gamma, 2, 1e-5, x, True)
        norm.backward(x, x, gamma, mean, rstd, 2, y, x, True)
        norm.backward(x, x, gamma, mean, rstd, 2, None, None, False, gamma)
        images, windows = x.unflatten(2, (16, 16)), Geometry((2, 2), (2, 2))
        maxima, which = pool.forward(windows, images, (8, 8), True)
        pool.backward(windows, maxima, which, (16, 16))
        for shape in ((clients, 4, 4096), (4, clients, 9, 64, 64)):
            place.place([torch.zeros(shape)], torch.zeros(clients, prod(shape[2:])))
        weights = [cast.Weight(0, 0, 9, 64, 64, 576), cast.Weight(36864, 36864, 0, 1, 64, 1)]
        cast.cast(torch.zeros(clients, 40000), weights, x.new_zeros(clients, 40000))
    return noted


def source(launch: Launch) -> tuple[ASTSource, dict[str, Any]]:
    """What Triton compiles for these arguments, and how: multiples of 16 are known to be, ones are constants."""
    kernel, _, args, meta = launch
    values = {p.name: v for p, v in zip(kernel.params, args, strict=False)} | meta
    signature, constants, known = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        if isinstance(value, torch.Tensor):
            signature[parameter.name], known[i,] = TYPES[value.dtype], ALIGNED
        elif isinstance(value, TensorDescriptor):
            signature[parameter.name] = f"tensordesc<{TYPES[value.base.dtype][1:]}{[*value.block_shape]}>"
        elif isinstance(value, float) and not parameter.is_constexpr:
            signature[parameter.name] = "fp32"
        elif isinstance(value, int) and not parameter.is_constexpr and (value != 1 or parameter.do_not_specialize):
            signature[parameter.name] = "i32" if abs(value) < 2**31 else "i64"
            known |= {(i,): ALIGNED} if value % 16 == 0 and not parameter.do_not_specialize else {}
        else:
            signature[parameter.name], constants[i,] = "constexpr", value
    options = {k: v for k, v in meta.items() if k in ("num_warps", "num_stages", "maxnreg")}
    return ASTSource(kernel, signature, constants, known), options


def compiled(launch: Launch) -> Any:
    made, options = source(launch)
    return triton.compile(made, target=TARGET, options=options)


def usage(cubin: bytes) -> tuple[int, int]:
    """Registers a thread and bytes spilled, as the assembler says."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"REG:(\d+)", said)[1]), int(re.search(r"STACK:(\d+)", said)[1])


def describe(launch: Launch) -> dict[str, Any]:
    kernel, grid, _, meta = launch
    built = compiled(launch)
    registers, spilled = usage(built.asm["cubin"])
    warps, shared = meta["num_warps"], built.metadata.shared
    fit = min(REGISTERS // (32 * warps * registers), SHARED // (shared + 1024), WARPS // warps)
    shape = {k: v for k, v in meta.items() if k.isupper() and not isinstance(v, (bool, str))}
    return {
        "kernel": kernel.__name__, "shape": shape,
        "warps": warps, "registers": registers, "spilled": spilled, "shared": shared, "programs": prod(grid),
        "programs_at_once": fit, "waves": round(prod(grid) / (MULTIPROCESSORS * max(fit, 1)), 2),
        "in_flight": in_flight(built.asm["ttgir"]),
    }  # fmt: skip


def products(clients: int, batch: int, once: bool) -> list[dict[str, Any]]:
    """What all kernels with products leave in flight: resnet18's by boxes and by pointers, convolutions', recurrences'.

    ``once``: kernels by pointers at their first shape only, none of fp32; boxes are what comes through registers.
    """
    ways = [*(("bf16", way) for way in ("boxes", "waited", "loads")), ("tf32", "loads"), ("fp32", "loads")]
    noted = [(p, n) for p, way in ways[: 4 if once else 5] for n in launches(clients, batch, p, way)]
    noted += [("bf16", n) for n in launches(max(clients, MANY_CLIENTS), batch, "bf16")]
    others = convolutions, partial(convolutions, turned=True), recurrences
    noted += [(p, n) for made in others for p in ("bf16", "tf32") for n in made(2, batch, p)]
    rows, seen = [], set[tuple[Any, ...]]()
    for precision, launch in noted:
        kernel, boxes = launch[0], any(isinstance(value, TensorDescriptor) for value in launch[3].values())
        tile = {k: v for k, v in launch[3].items() if k in TILE}
        way = {"kernel": f"{kernel.module}.{kernel.__name__}", "precision": precision, "boxes": boxes}
        key = (*way.values(), "" if once and not boxes else str(tile))
        if key not in seen:
            seen.add(key)
            program = lowered(*source(launch), TARGET)
            held = {"from_registers": from_registers(program), "in_flight": in_flight(program)}
            rows.append({**way, **held, "tile": tile, "products": "dot " in program})
            print(f"{held['in_flight']} in flight of {held['from_registers']}  {' '.join(map(str, key))}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--methods", default="fedavg,fedsmoo", help="whose passes; several, separated by commas")
    parser.add_argument("--only", default="", help="beginnings of kernels' names, separated by commas")
    parser.add_argument("--once", action="store_true", help="every kernel at its first shape only")
    parser.add_argument("--products", action="store_true", help="only what products leave in flight, all precisions")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = products(options.clients, options.batch, options.once) if options.products else kernels(options)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))


def kernels(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Describe every kernel that was asked for, and print it."""
    rows, seen = [], set()
    noted = launches(options.clients, options.batch, options.precision)
    for method in options.methods.split(","):
        noted += passes(method, options.clients, options.precision)
    for made in (recurrences, convolutions, groups, general, far):
        noted += made(options.clients, options.batch, options.precision)
    for launch in noted + noise(options.clients):
        generated = launch[0].src if launch[0].__name__ == "vector_pass" else launch[3].get("KIND", "")
        kernel = launch[0].module, launch[0].__name__, generated, launch[3].get("FAR")
        key = (*kernel, "" if options.once else str(sorted(launch[3].items(), key=str)))
        if key in seen or not launch[0].__name__.startswith(tuple(options.only.split(","))):
            continue
        seen.add(key)
        rows.append(row := describe(launch))
        shape = " ".join(f"{k}={v}" for k, v in row["shape"].items())
        print(
            f"{row['kernel']:22s} {row['warps']:2d} warps {row['registers']:3d} registers {row['spilled']:3d} B spilled"
            f" {row['shared'] / 1024:5.1f} KiB  {row['programs']:4d} programs, {row['programs_at_once']} at once, "
            f"{row['waves']:.2f} waves, {row['in_flight']} in flight  {shape}", flush=True,
        )  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
