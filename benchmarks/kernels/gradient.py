"""Speed and accuracy of the hand-batched ResNet-18-GN gradient on one GPU.

PYTHONPATH=src python3 -m benchmarks.kernels.gradient --out kernels.json           # accuracy, scaling, time by kernel
PYTHONPATH=src python3 -m benchmarks.kernels.gradient --tune --out tiles.json      # search tile sizes, print the table
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.kernels.candidates import options_of
from benchmarks.kernels.timing import captured, milliseconds
from fedsmoo.kernels import available, from_torchvision, live_layout
from fedsmoo.kernels.resnet18.shapes import shown_images, stored_images
from fedsmoo.kernels.resnet18.tiles import TABLES, Tile
from fedsmoo.models.resnet import ResNet18GN
from fedsmoo.runs.origin.provenance import code_facts

BATCH = 50
CLASSES = 10


def compile_one(job: tuple[int, str, Mapping[str, Tile] | None, bool]) -> None:
    """Compiles one gradient's kernels into Triton's cache on disk; runs in a process of its own."""
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    clients, precision, tiles, logits = job
    try:
        gradient = ResNet18Gradient(clients, BATCH, CLASSES, precision=precision, tiles=tiles)
        gradient.compile_ahead(threads=4, logits=logits)
    except Exception as error:  # the caller meets the same error where it matters
        print("  does not compile:", str(error).splitlines()[0][:100], flush=True)


def compile_all(jobs: list[tuple[int, str, Mapping[str, Tile] | None, bool]], processes: int = 14) -> float:
    """Compiles many jobs side by side: one Python cannot keep 16 cores busy. Returns the seconds it took."""
    begun = time.perf_counter()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=spawn) as pool:
        list(pool.map(compile_one, jobs))
    return time.perf_counter() - begun


def inputs(clients: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Fresh weights of C networks, images, labels and sample weights, drawn on the device."""
    generator = torch.Generator("cuda").manual_seed(seed)
    torch.manual_seed(seed)
    base = from_torchvision(ResNet18GN(CLASSES).state_dict()).cuda()
    w = base + 0.02 * torch.randn(clients, base.numel(), generator=generator, device="cuda")
    images = stored_images(torch.randn(clients, BATCH, 32, 32, 3, generator=generator, device="cuda"), dtype)
    labels = torch.randint(0, CLASSES, (clients, BATCH), generator=generator, device="cuda")
    return w, images, labels, torch.full((clients, BATCH), 1 / BATCH, device="cuda")


def reference(w: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The live gradients by autograd of the plain module in float64, client by client."""
    from fedsmoo.kernels import to_torchvision

    rows = []
    for c in range(w.shape[0]):
        net = ResNet18GN(CLASSES).double().cuda()
        net.load_state_dict(to_torchvision(w[c].double()))
        outputs = net(shown_images(images[c]).double().permute(0, 3, 1, 2))
        each = F.cross_entropy(outputs, labels[c], reduction="none")
        (each * weight[c].double()).sum().backward()
        rows.append(from_torchvision({name: p.grad for name, p in net.named_parameters()}))
    return torch.stack(rows)


def accuracy(precision: str, clients: int = 3) -> dict[str, Any]:
    """Relative errors, over all parameters and for the worst one, and whether a second call gives the same bits."""
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    gradient = ResNet18Gradient(clients, BATCH, CLASSES, precision=precision)
    data = inputs(clients, gradient.dtype, seed=1)
    truth = reference(*data)
    out = torch.full_like(data[0], float("nan"))
    out[:, gradient.layout.count :] = 0
    grad, _ = gradient(*data, out=gradient.output(out))
    again, _ = gradient(*data)
    torch.cuda.synchronize()
    ours, theirs = gradient.layout.split(grad.double()), gradient.layout.split(truth)
    each = {name: ((ours[name] - v).norm() / v.norm()).item() for name, v in theirs.items()}
    worst = max(each, key=lambda name: each[name] if each[name] == each[name] else float("inf"))
    return {
        "relative_error": ((grad - truth).norm() / truth.norm()).item(),
        "worst_parameter": worst,
        "worst_relative_error": each[worst],
        "bits_repeat": bool(torch.equal(grad, again)),
    }


def timed(
    clients: int, precision: str, tiles: Mapping[str, Tile] | None = None, overlap: bool = True
) -> dict[str, Any]:
    """Time of one gradient of C clients in a CUDA graph, of the logits alone, and the peak memory."""
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    gradient = ResNet18Gradient(clients, BATCH, CLASSES, precision=precision, tiles=tiles, overlap=overlap)
    data = inputs(clients, gradient.dtype)
    w, out = gradient.weights(data[0]), gradient.output(torch.empty_like(data[0], dtype=gradient.dtype))
    full = milliseconds(captured(lambda: gradient(w, *data[1:], out=out)))
    forward = milliseconds(captured(lambda: gradient.logits(w, data[1])))
    return {
        "clients": clients, "precision": precision, "overlap": overlap, "gradient_ms": round(full, 4),
        "logits_ms": round(forward, 4), "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 3),
    }  # fmt: skip


def by_launch(clients: int, precision: str) -> list[dict[str, Any]]:
    """Device time of each launch of one gradient, in order, without the second stream."""
    from torch.profiler import ProfilerActivity, profile

    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    gradient = ResNet18Gradient(clients, BATCH, CLASSES, precision=precision, overlap=False)
    data = inputs(clients, gradient.dtype)
    w, out = gradient.weights(data[0]), gradient.output(torch.empty_like(data[0], dtype=gradient.dtype))
    graph = captured(lambda: gradient(w, *data[1:], out=out))
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        graph.replay()
        torch.cuda.synchronize()
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda e: e.time_range.start)
    return [{"kernel": e.name[:48], "us": round(e.time_range.elapsed_us(), 2)} for e in events]


def grouped(launches: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Microseconds and launches by kernel name, largest first."""
    names = {row["kernel"] for row in launches}
    sums = {
        n: {
            "us": round(sum(r["us"] for r in launches if r["kernel"] == n), 1),
            "launches": sum(r["kernel"] == n for r in launches),
        }
        for n in names
    }
    return dict(sorted(sums.items(), key=lambda item: -item[1]["us"]))


def gradient_ms(clients: int, precision: str, tiles: Mapping[str, Tile]) -> float:
    """Time of a whole gradient with these tiles; infinite where they do not fit the device."""
    from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient

    try:
        gradient = ResNet18Gradient(clients, BATCH, CLASSES, precision=precision, tiles=tiles)
        data = inputs(clients, gradient.dtype)
        w, out = gradient.weights(data[0]), gradient.output(torch.empty_like(data[0], dtype=gradient.dtype))
        return milliseconds(captured(lambda: gradient(w, *data[1:], out=out)), budget_ms=40.0)
    except Exception as error:  # out of shared memory or registers: a tile that cannot be, not a failure
        print("  no:", str(error).splitlines()[0][:100], flush=True)
        return float("inf")


def tune(clients: int, precision: str, seconds: float, keys: list[str] | None) -> dict[str, Any]:
    """One pass over the table's keys, each entry replaced by the candidate that makes the whole gradient fastest."""
    deadline = time.perf_counter() + seconds
    best: dict[str, Tile] = dict(TABLES[precision])
    options = {key: options_of(key) for key in sorted(best, key=_importance) if keys is None or key in keys}
    jobs = [(clients, precision, {key: option}, False) for key, tiles in options.items() for option in tiles]
    compile_all([(clients, precision, None, False)])  # what all candidates share, once
    print(f"{len(jobs)} candidates compiled in {compile_all(jobs):.1f} s", flush=True)
    fastest = start = gradient_ms(clients, precision, best)
    for key, tiles in options.items():
        for option in tiles:
            if time.perf_counter() > deadline:
                break
            took = gradient_ms(clients, precision, {**best, key: option})
            if took < 0.995 * fastest:
                fastest, best = took, {**best, key: option}
        print(f"{key:16s} {best[key]}  {fastest:.4f} ms", flush=True)
    return {
        "clients": clients,
        "before_ms": start,
        "after_ms": fastest,
        "tiles": {k: asdict(t) for k, t in best.items()},
    }


def _importance(key: str) -> int:
    kinds = ("weight", "backward", "forward", "weight/2", "backward/2", "forward/2", "stem-weight", "stem")
    return kinds.index(key.split(":")[0])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything the default mode reports."""
    precisions = arguments.precisions.split(",")
    compiled = compile_all([(10, precision, None, True) for precision in precisions])
    print(f"compiled in {compiled:.1f} s", flush=True)
    results: dict[str, Any] = {"compile_seconds": round(compiled, 1), "accuracy": {}, "scaling": []}
    for precision in precisions:
        results["accuracy"][precision] = accuracy(precision)
        print(precision, results["accuracy"][precision], flush=True)
        counts = [int(c) for c in arguments.clients.split(",")] if precision == "bf16" else [10]
        for clients in counts:
            results["scaling"].append(timed(clients, precision))
            print(results["scaling"][-1], flush=True)
        if precision == "bf16":
            results["scaling"].append(timed(10, precision, overlap=False))
            print(results["scaling"][-1], flush=True)
            try:
                results["launches"] = by_launch(10, precision)
            except Exception as error:  # a profiler that fails must not cost the other numbers
                print("no profile:", error)
                continue
            results["groups"] = grouped(results["launches"])
            for name, row in results["groups"].items():
                print(f"  {name:48s} {row['us']:8.1f} us  {row['launches']:3.0f} launches", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("kernels.json"), help="where the JSON goes")
    parser.add_argument("--clients", default="1,10,20,40,100", help="cohort sizes to time")
    parser.add_argument("--precisions", default="bf16,tf32,fp32", help="precisions to check and time")
    parser.add_argument("--tune", action="store_true", help="search tile sizes instead")
    parser.add_argument("--tune-clients", type=int, default=10, help="cohort size the search times")
    parser.add_argument("--seconds", type=float, default=130.0, help="how long the search may take")
    parser.add_argument("--keys", help="entries of the table to search, comma-separated; all without it")
    arguments = parser.parse_args()
    ok, why = available("cuda")
    if not ok:
        parser.exit(1, f"the kernels cannot run here: {why}\n")
    import triton

    begun = time.perf_counter()
    if arguments.tune:
        keys = arguments.keys.split(",") if arguments.keys else None
        results = tune(arguments.tune_clients, arguments.precisions.split(",")[0], arguments.seconds, keys)
    else:
        results = measure(arguments)
    results |= code_facts()
    results |= {
        "hardware": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "batch": BATCH, "parameters": live_layout(CLASSES).count, "seconds": round(time.perf_counter() - begun, 1),
    }  # fmt: skip
    arguments.out.write_text(json.dumps(results, indent=1))
    print(f"wrote {arguments.out} after {results['seconds']} s")


if __name__ == "__main__":
    main()
