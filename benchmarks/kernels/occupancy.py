"""What Triton's compiler makes of every kernel of one gradient of ResNet-18-GN, of the passes of a method's step, of
noise, of recurrences, and of what modules of any kind share, without a GPU: registers, bytes spilled, shared memory,
programs that fit a multiprocessor, waves of programs on an H100 or H200, products that a loop leaves in flight, and
instructions that copy a single number to shared memory.

PYTHONPATH=src python3 -m benchmarks.kernels.occupancy --only stem,pool --out o.json  # 10 clients, bf16
PYTHONPATH=src python3 -m benchmarks.kernels.occupancy --products                     # products in flight: seconds
PYTHONPATH=src python3 -m benchmarks.kernels.occupancy --precision tf32 --only conv,stem_w  # narrow copies
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from benchmarks.kernels.launches import (
    convolutions,
    embeddings,
    far,
    general,
    groups,
    launches,
    noise,
    passes,
    recurrences,
)
from benchmarks.kernels.parts.assembly import narrow_copies, usage
from benchmarks.kernels.parts.flight import before_waits, from_registers, in_flight, lowered
from fedsmoo.kernels.resnet18.tiles import MANY_CLIENTS
from fedsmoo.kernels.runtime import Launch

TARGET = GPUTarget("cuda", 90, 32)
MULTIPROCESSORS, REGISTERS, SHARED, WARPS = 132, 65536, 227 * 1024, 64  # of an H100 or H200
TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8", torch.int64: "*i64", torch.int32: "*i32",
    torch.bool: "*i1",
}  # fmt: skip
TILE = {
    "TAPS", "STRIDE", "BM", "BN", "BK", "RB", "RH", "RW", "BACK", "TURNED", "ACROSS", "KIND", "num_warps", "num_stages",
}  # fmt: skip
ALIGNED = [["tt.divisibility", 16]]


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
        "in_flight": in_flight(built.asm["ttgir"]), "narrow_copies": narrow_copies(built.asm["ptx"]),
        "before_waits": before_waits(built.asm["ttgir"]),
    }  # fmt: skip


def products(clients: int, batch: int, once: bool) -> list[dict[str, Any]]:
    """What all kernels with products leave in flight: resnet18's by boxes and by pointers, convolutions', recurrences'.

    ``once``: kernels by pointers at their first shape only, none of fp32; boxes are what comes through registers.
    """
    ways = [*(("bf16", way) for way in ("boxes", "waited", "loads")), ("tf32", "loads"), ("fp32", "loads")]
    noted = [(p, n) for p, way in ways[: 4 if once else 5] for n in launches(clients, batch, p, way)]
    noted += [("bf16", n) for n in launches(max(clients, MANY_CLIENTS), batch, "bf16")]
    others = convolutions, partial(convolutions, turned=True), recurrences, embeddings
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
    for made in (recurrences, embeddings, convolutions, groups, general, far):
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
            f"{row['waves']:.2f} waves, {row['in_flight']} in flight, {row['narrow_copies']} narrow copies  {shape}",
            flush=True,
        )  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
