"""A local step of ResNet-18-GN, kernel by kernel as it ran, and rounds and gradients in two ways, taken in turns.

PYTHONPATH=src python3 -m benchmarks.kernels.steps --ways loads,boxes,waited,late,again --out steps.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.round import noise
from benchmarks.kernels.candidates import waited
from benchmarks.kernels.gradient import CLASSES, inputs, reference
from benchmarks.kernels.replays import differences
from benchmarks.kernels.timing import captured, milliseconds
from fedsmoo.kernels.early import early_serves
from fedsmoo.kernels.resnet18 import gradient as resnet18
from fedsmoo.kernels.resnet18.tiles import tiles_for
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config
from fedsmoo.sweeps.pack import Pack

SERVED = resnet18.boxes_serve


def choose(way: str) -> None:
    """Let gradients that are made from now on be taken in a way.

    ``loads``: by pointers; ``boxes``: where that is faster, the tensor memory unit brings tiles; ``again``: so, too;
    ``waited``: boxes whose products are not turned, and waited for; ``late``: no kernel is placed early.
    """
    resnet18.tiles_for = (lambda *sizes: waited(tiles_for(*sizes))) if way == "waited" else tiles_for
    resnet18.boxes_serve = (lambda device, dtype: False) if way == "loads" else SERVED
    resnet18.early_serves = (lambda device: False) if way == "late" else early_serves


def gradient_facts(way: str, clients: int = 10) -> dict[str, Any]:
    """Time of a gradient, side by side and one after the other, its error against float64, and whether it repeats.

    ``repeats``: after each of 200 looks at replays of the captured gradient it had the bits of the first; ``differs``
    says which buffer was the first that had not, and how often.
    """
    choose(way)
    found: dict[str, Any] = {}
    for overlap in (True, False):
        made = resnet18.ResNet18Gradient(clients, 50, CLASSES, overlap=overlap)
        made.compile_ahead(16)
        data = inputs(clients, made.dtype)
        w, out = made.weights(data[0]), made.output(torch.empty_like(data[0], dtype=made.dtype))
        graph = captured(lambda: made(w, *data[1:], out=out))  # noqa: B023
        found["ms" if overlap else "ms_one_stream"] = milliseconds(graph)
        if overlap:
            differs = differences(made, out, graph.replay, 200)
            found |= {"repeats": not differs, "differs": dict(differs)}
        found["logits_ms"] = milliseconds(captured(lambda: made.logits(w, data[1])))  # noqa: B023
    many = resnet18.ResNet18Gradient(40, 50, CLASSES)
    data = inputs(40, many.dtype)
    w, out = many.weights(data[0]), many.output(torch.empty_like(data[0], dtype=many.dtype))
    found["ms of 40 clients"] = milliseconds(captured(lambda: many(w, *data[1:], out=out)))
    made = resnet18.ResNet18Gradient(3, 50, CLASSES)
    data = inputs(3, made.dtype, seed=1)
    grad, truth = made(*data)[0], reference(*data)
    torch.cuda.synchronize()
    error = ((grad - truth).norm() / truth.norm()).item()
    each = {n: ((made.layout.split(grad.double())[n] - v).norm() / v.norm()).item()
            for n, v in made.layout.split(truth).items()}  # fmt: skip
    worst = max(each, key=lambda n: each[n])
    return found | {"error": error, "worst": [worst, each[worst]]}


def pack_of(method: str, precision: str = "bf16") -> Pack:
    config = Config(
        algorithm=method, model="resnet18_gn", clients=100, cohort=10, precision=precision, rounds=100, batch_size=50,
        local_epochs=5, engine="batched",
    )  # fmt: skip
    rng = np.random.default_rng(1)
    indices = [rng.integers(50_000, size=500) for _ in range(100)]
    return Pack([assemble(config, data=DATA, indices=indices)])


def timeline(pack: Pack) -> list[dict[str, Any]]:
    """The kernels of a round in their order: name, start and length in microseconds, and stream."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        pack.advance([0])
        torch.cuda.synchronize()
    path = Path("/tmp/trace.json")
    profiler.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy")]
    events.sort(key=lambda e: e["ts"])
    first = events[0]["ts"]
    return [
        {"name": e["name"][:60], "at": round(e["ts"] - first, 2), "us": round(e["dur"], 2), "stream": e["tid"],
         "grid": e["args"].get("grid"), "registers": e["args"].get("registers per thread")}
        for e in events
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--ways", default="loads,boxes,again")
    parser.add_argument("--methods", default="fedavg,fedsmoo")
    parser.add_argument("--gradients", default="", help="further ways in which gradients alone are taken")
    parser.add_argument("--parts", default="", help="numbers of parts of layer 1's weight gradients, timed in turns")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--only", choices=("compile",), help="only compile the gradients' kernels")
    parser.add_argument("--timeline", action="store_true", help="write the kernels of a round in the last way, too")
    args = parser.parse_args()
    begun, result = time.perf_counter(), {}

    def note(name: str, found: Any) -> None:
        result[name] = found
        args.out.write_text(json.dumps(result, indent=1))
        print(f"{time.perf_counter() - begun:6.1f} s {name}: {found}", flush=True)

    ways = args.ways.split(",")
    if args.only == "compile":
        for way in ways:
            choose(way)
            resnet18.ResNet18Gradient(10, 50, CLASSES).compile_ahead(16)
        return
    for way in dict.fromkeys((*ways, *filter(None, args.gradients.split(",")))):
        if way == "again":  # whose rounds show whether bits repeat
            continue
        try:
            note(f"gradient {way}", gradient_facts(way))
        except Exception as error:  # one way that fails must not cost the others
            note(f"gradient {way}", {"failed": str(error)[:300]})
            ways = [w for w in ways if w != way]
    if args.parts:
        note("parts of layer 1", parts_of_layer1([int(n) for n in args.parts.split(",")]))
    for method in args.methods.split(","):
        rounds(method, ways, args, note)


def rounds(method: str, ways: list[str], args: argparse.Namespace, note: Callable[[str, Any], None]) -> None:
    """Rounds of a method in several ways, taken in turns, and the kernels of one as they ran.

    ``bits`` is a sum of the bits of the server's model after all of them: every way was given the same clients.
    """
    packs = {}
    for way in ways:
        choose(way)
        packs[way] = pack_of(method)
        packs[way].advance([0])
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(args.turns):
        for way in ways:
            seconds[way] += [packs[way].advance([0])[0].seconds_train for _ in range(3)]
    for way in ways:
        bits = packs[way].simulations[0].server.w.view(torch.int32).long().sum().item()
        note(f"{method} {way}", {"median": statistics.median(seconds[way]), "all": seconds[way], "bits": bits})
    for way in ways[-1:] if args.timeline else []:
        path = args.out.with_name(f"{args.out.stem}_{method}_{way}.json")
        path.write_text("\n".join(map(json.dumps, timeline(packs[way]))))


def parts_of_layer1(counts: list[int]) -> dict[int, float]:
    """Time of a gradient with the weight gradients of layer 1 in so many parts, measured in turns."""
    from fedsmoo.kernels.resnet18 import buffers

    rule, graphs = buffers.splits_for, {}
    for count in counts:
        buffers.splits_for = lambda c, programs, steps, n=count, **bounds: n if programs == 9 else rule(
            c, programs, steps, **bounds
        )  # fmt: skip
        made = resnet18.ResNet18Gradient(10, 50, CLASSES)
        data = inputs(10, made.dtype)
        w, out = made.weights(data[0]), made.output(torch.empty_like(data[0], dtype=made.dtype))
        graphs[count] = captured(lambda made=made, w=w, data=data, out=out: made(w, *data[1:], out=out)), made
    buffers.splits_for = rule
    turns = [{count: milliseconds(graph) for count, (graph, _) in graphs.items()} for _ in range(5)]
    return {count: statistics.median(t[count] for t in turns) for count in counts}


DATA = noise()

if __name__ == "__main__":
    main()
