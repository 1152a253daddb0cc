"""The workloads: one that all ways run, the paper's on a GPU, and those of the rivals' own benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.rivals import nets
from fedsmoo.data.digits import digits
from fedsmoo.data.division.partition import parse

CIFAR = {"dataset": "images", "classes": 10}
COMMON = {"algorithm": "fedavg", "device": "cpu", "precision": "fp32", "weight_decay": 0.0, "clip": None, "warm_up": 1}
TASKS: dict[str, dict[str, Any]] = {
    # scikit-learn's digits and a small MLP: overhead is nearly all there is.
    "digits": COMMON | {
        "net": "mlp", "dataset": "digits", "partition": "iid", "clients": 100, "cohort": 10, "local_epochs": 5,
        "batch_size": 10, "lr": 0.1, "weight_decay": 1e-3, "clip": 10.0, "classes": 10, "warm_up": 3, "rounds": 20,
    },
    # The paper's round: ResNet-18 with GroupNorm, 10 clients of 500 images, 50 steps of 50.
    "paper": COMMON | CIFAR | {
        "net": "resnet18_gn", "partition": "iid", "clients": 20, "samples": 10_000, "cohort": 10,
        "local_epochs": 5, "batch_size": 50, "lr": 0.1, "weight_decay": 1e-3, "clip": 10.0, "rounds": 1,
    },
    # pfl-research, benchmarks/image_classification: its configs/baseline.yaml.
    "pfl": COMMON | CIFAR | {
        "net": "dropped", "partition": "iid", "clients": 1000, "samples": 50_000, "cohort": 50,
        "local_epochs": 1, "batch_size": 10, "lr": 0.1, "rounds": 4,
    },
    # BlazeFL, benchmarks/blazefl-case: its defaults, but a tenth of the clients in a round.
    "blazefl": COMMON | CIFAR | {
        "net": "tutorial", "partition": "shards-2", "clients": 100, "samples": 50_000, "cohort": 10,
        "local_epochs": 5, "batch_size": 50, "lr": 0.1, "augment": True, "mean": [0.5] * 3, "std": [0.5] * 3,
        "rounds": 3,
    },
    # FedJAX, examples/emnist_fed_avg.py: its network, client optimiser and batches, on drawings of the same size.
    "fedjax": COMMON | {
        "net": "dropped", "dataset": "drawings", "partition": "iid", "clients": 100, "samples": 20_000, "cohort": 10,
        "local_epochs": 1, "batch_size": 20, "lr": 10**-1.5, "classes": 62, "rounds": 5,
    },
    # The authors' simulator on its own model, with a tenth of the samples: two cores need minutes for a whole round.
    "authors": COMMON | CIFAR | {
        "net": "resnet18_gn", "partition": "iid", "clients": 10, "samples": 1000, "cohort": 2,
        "local_epochs": 1, "batch_size": 50, "lr": 0.1, "weight_decay": 1e-3, "clip": 10.0, "augment": True,
        "rounds": 2,
    },
}  # fmt: skip


def write_workload(path: Path, settings: dict[str, Any], cifar: Path | None = None) -> None:
    """Write data, split and first weights into one file, the same for all."""
    seed = settings["seed"]
    if settings["dataset"] == "digits":
        data = digits()
        parts = {"x_train": data.x_train.flatten(1).numpy(), "x_test": data.x_test.flatten(1).numpy()}
        parts |= {"y_train": data.y_train.numpy(), "y_test": data.y_test.numpy()}
    else:
        parts = pictures(settings, cifar)
    if parts["x_train"].dtype == np.uint8:  # normalised by their own mean and deviation, unless a benchmark says how
        settings = {n: settle(parts["x_train"]) for n, settle in NORMAL.items()} | settings
    rule = parse(settings["partition"])
    clients = rule.split(parts["y_train"], settings["classes"], settings["clients"], seed)
    shape = parts["x_train"].shape[1:]
    start = nets.build(
        settings["net"], shape if len(shape) < 3 else (shape[-1], *shape[:-1]), settings["classes"], seed
    ).state_dict()
    np.savez(
        path, **parts, samples=np.concatenate(clients), ends=np.cumsum([len(c) for c in clients]),
        settings=json.dumps(settings), **{f"start.{n}": v.numpy() for n, v in start.items()},
    )  # type: ignore[arg-type]  # fmt: skip


NORMAL = {
    "mean": lambda x: [float(m) for m in (x[:5000] / 255).mean((0, 1, 2))],
    "std": lambda x: [float(m) for m in (x[:5000] / 255).std((0, 1, 2))],
}


def pictures(settings: dict[str, Any], cifar: Path | None) -> dict[str, np.ndarray]:
    """CIFAR-10 from a file, or images that can be learnt: a blurred pattern for each class, in noise."""
    train, test = settings["samples"], 2000
    if settings["dataset"] == "images" and cifar is not None:
        with np.load(cifar) as f:
            parts = {n: f[n] for n in ("x_train", "y_train", "x_test", "y_test")}
        x, y = np.concatenate([parts["x_train"], parts["x_test"]]), np.concatenate([parts["y_train"], parts["y_test"]])
        at = np.r_[:train, 50_000 : 50_000 + test]
        x, y = x[at], y[at].astype(np.int64).reshape(-1)
    else:
        side, channels = (32, 3) if settings["dataset"] == "images" else (28, 1)
        draw = torch.Generator().manual_seed(0)
        coarse = torch.randn(settings["classes"], channels, 7, 7, generator=draw)
        pattern = F.interpolate(coarse, side, mode="bilinear")
        label = torch.randint(settings["classes"], (train + test,), generator=draw)
        noisy = 128 + 30 * pattern[label] + 50 * torch.randn(train + test, channels, side, side, generator=draw)
        x, y = noisy.clamp(0, 255).byte().movedim(1, -1).numpy(), label.numpy()
    return {"x_train": x[:train], "y_train": y[:train], "x_test": x[train:], "y_test": y[train:]}
