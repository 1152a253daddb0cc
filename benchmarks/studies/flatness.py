"""Flatness of ResNet-18-GN models on CIFAR-10: top Hessian eigenvalue, trace and a 51 x 51 landscape, with times.

PYTHONPATH=src python3 -m benchmarks.studies.flatness --out analysis.json                         # times only, on noise
PYTHONPATH=src python3 -m benchmarks.studies.flatness --data cifar10.npz --out analysis.json \\
    --models fedsam=RUN/model.safetensors fedsmoo=RUN/model.safetensors

First the landscapes of all models, which are quick, then their Hessians, in the order given. The output is one JSON
object, written anew after every measurement, so that a stopped command keeps what it has. With ``--keep`` and run
folders as models each result also goes into ``RUN/analysis/``, for the report page and ``fedsmoo results export``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.gpu.round import noise
from fedsmoo.analysis.functions import hessian, landscape
from fedsmoo.analysis.functions.objective import objective
from fedsmoo.data.sources import load
from fedsmoo.engines.oracles.fused import fused_reason
from fedsmoo.engines.task import Task
from fedsmoo.models import build
from fedsmoo.runs.origin.provenance import code_facts, device_name
from fedsmoo.runs.simulation import synchronize
from fedsmoo.version import __version__


def seconds(task: Task, began: float) -> float:
    synchronize(task.device)
    return time.perf_counter() - began


def curvature(task: Task, w: torch.Tensor, samples: int, size: int, probes: int, tol: float) -> dict[str, Any]:
    """The top eigenvalue and the trace, each with its seconds."""
    loss = objective(task, "train", samples, size=size)
    loss.products(w, w)  # warm-up: the libraries choose their algorithms
    began = time.perf_counter()
    values, _, taken = hessian.top_eigenvalues(lambda v: loss.products(w, v), w, 1, tol)
    top = seconds(task, began)
    trace = hessian.trace(lambda v: loss.products(w, v), w, probes)
    both = seconds(task, began)
    value, accuracy = loss.evaluate(w)
    return {
        "eigenvalues": values.tolist(),
        "trace": trace.value,
        "trace_error": trace.error,
        "trace_method": "hutch++",
        "products": taken + trace.products,
        "tolerance": tol,
        "part": "train",
        "samples": loss.samples,
        "loss": value,
        "accuracy": accuracy,
        "seconds_eigenvalues": top,
        "seconds_trace": both - top,
        "seconds_per_product": both / (taken + trace.products),
    }


def grid(task: Task, w: torch.Tensor, points: int, span: float, images: int, size: int, models: int) -> dict[str, Any]:
    """The landscape in the directions of seed 0; the warm-up compiles kernels for one batch of models."""
    loss = objective(task, "test", images, size=size)
    across, along = landscape.random_plane(task.model, w)
    axis = np.linspace(-span, span, points)
    began = time.perf_counter()
    evaluate = loss.evaluator(min(models, points * points))
    evaluate(w.expand(min(models, points * points), -1).contiguous())
    warm = seconds(task, began)
    began = time.perf_counter()
    found = landscape.surface(loss, w, across, along, axis, axis, models)
    spent = seconds(task, began)
    exact, accuracy = loss.evaluate(w)
    return {
        "a": axis.tolist(),
        "b": axis.tolist(),
        "loss": np.where(np.isfinite(found.loss), found.loss, 1e9).tolist(),
        "accuracy": found.accuracy.tolist(),
        "part": "test",
        "samples": loss.samples,
        "centre": float(found.loss[points // 2, points // 2]),
        "recorded": exact,
        "recorded_accuracy": accuracy,
        "seconds_warm_up": warm,
        "seconds": spent,
    }


def named_models(words: list[str], task: Task) -> dict[str, tuple[torch.Tensor, Path | None]]:
    """``name=file`` or ``name=run folder`` to flat weights; without any, the initial network."""
    out: dict[str, tuple[torch.Tensor, Path | None]] = {}
    for word in words:
        name, _, place = word.partition("=")
        path = Path(place or name)
        file = path / "model.safetensors" if path.is_dir() else path
        w = task.model.flatten(load_file(file)).to(task.device, task.dtype)
        out[name] = (w, path if path.is_dir() else None)
    return out or {"initial": (task.model.initial().to(task.device, task.dtype), None)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[], help="name=model.safetensors or name=run folder")
    parser.add_argument("--data", type=Path, help="cifar10 as .npz or a folder (default: noise, for times)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=50_000, help="training images for the Hessian")
    parser.add_argument("--size", type=int, default=2500, help="of them at once")
    parser.add_argument("--probes", type=int, default=24, help="products for the trace")
    parser.add_argument("--tol", type=float, default=1e-2, help="relative accuracy of the eigenvalue")
    parser.add_argument("--precision", default="tf32", help="of the Hessian's products: fp32 or tf32")
    parser.add_argument("--points", type=int, default=51)
    parser.add_argument("--span", type=float, default=1.0)
    parser.add_argument("--images", type=int, default=10_000, help="test images for the landscape")
    parser.add_argument("--grid-size", type=int, default=500, help="of them at once")
    parser.add_argument("--grid-models", type=int, default=32, help="grid points at once")
    parser.add_argument("--grid-precision", default="bf16", help="fp32, tf32 or bf16")
    parser.add_argument("--skip", default="", help="hessian or landscape")
    parser.add_argument("--keep", action="store_true", help="also write RUN/analysis/*.json")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = (load("cifar10", options.data) if options.data else noise()).to(device)
    model = build("resnet18_gn", data, 0)
    model.module.to(device)
    flat, image = (Task(model, data, device, precision=p) for p in (options.precision, options.grid_precision))
    result: dict[str, Any] = {
        "device": device_name(device),
        "versions": {"fedsmoo": __version__, "torch": torch.__version__},
        **code_facts(),
        "data": data.name,
        "precision": options.precision,
        "grid_precision": options.grid_precision,
        "grid_kernels": fused_reason(image) or "hand-written",
        "models": {},
    }
    measure: dict[str, Callable[[torch.Tensor], dict[str, Any]]] = {
        "landscape": lambda w: grid(
            image, w, options.points, options.span, options.images, options.grid_size, options.grid_models
        ),
        "hessian": lambda w: curvature(flat, w, options.samples, options.size, options.probes, options.tol),
    }
    models = named_models(options.models, flat)
    for kind in (k for k in measure if k != options.skip):
        for name, (w, folder) in models.items():
            found = result["models"].setdefault(name, {})[kind] = measure[kind](w)
            print(name, kind, {k: v for k, v in found.items() if isinstance(v, float | int)}, flush=True)
            write(options.out, result)
            if options.keep and folder is not None:
                (folder / "analysis").mkdir(exist_ok=True)
                write(folder / "analysis" / f"{kind}.json", found)


def write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
