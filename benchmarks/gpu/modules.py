r"""Seconds of a round of modules that nobody prepared for us, against a plain loop of PyTorch, on one device.

PYTHONPATH=src python3 -m benchmarks.gpu.modules --out modules.json                       # all below, on a GPU in bf16
PYTHONPATH=src python3 -m benchmarks.gpu.modules --only cnn,vit --device cpu --steps 4 --out modules_cpu.json
PYTHONPATH=src python3 -m benchmarks.gpu.modules --module mine.py:factory --inputs 3x32x32 --classes 10 --out mine.json
PYTHONPATH=src python3 -m benchmarks.gpu.modules --module benchmarks/rivals/nets.py:emnist --inputs 1x28x28 \
    --classes 62 --batch 20 --steps 10 --rounds 7 --precision tf32 --out emnist.json  # the round of FedJAX's example

FedAvg, 10 clients in a round, 50 local steps of 50 samples each. The loop trains one client after the other as anybody
would: ``forward`` in autocast, ``backward``, a norm clipped to 10, ``torch.optim.SGD``. Both compute in one precision.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu.limits import limits
from fedsmoo.api import assemble_objects
from fedsmoo.core.user_code import user_object
from fedsmoo.data.check import from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.runs.origin.provenance import code_facts, device_name

CLIENTS, BATCH = 10, 50


class Residual(nn.Module):
    """A block of ResNet-18 with GroupNorm."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False), nn.GroupNorm(2, outside)
        self.conv2, self.norm2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False), nn.GroupNorm(2, outside)
        self.short = nn.Identity()
        if stride > 1 or inside != outside:
            self.short = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(2, outside))

    def forward(self, x: Tensor) -> Tensor:
        x, short = F.relu(self.norm1(self.conv1(x))), self.short(x)
        return F.relu(self.norm2(self.conv2(x)) + short)


def resnet() -> nn.Module:
    """ResNet-18 with GroupNorm and the 3x3 stem that most papers use on CIFAR."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [Residual(*w) for w in [*widths, (512, 512, 1)]]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(2, 64), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def cnn() -> nn.Module:
    """Two 5x5 convolutions of 64 and three linear layers."""
    convs = [nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)]
    return nn.Sequential(*convs, nn.Flatten(), *head)


class ViT(nn.Module):
    """A vision transformer: patches of 4x4, 6 layers of 192, 3 heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, 192, 4, 4), nn.Parameter(0.02 * torch.randn(1, 64, 192))
        layer = nn.TransformerEncoderLayer(192, 3, 768, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(copy.deepcopy(layer) for _ in range(6))
        self.norm, self.head = nn.LayerNorm(192), nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class CharLSTM(nn.Module):
    """Two layers of 256 over 80 characters; a character is predicted at every place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(90, 8), nn.LSTM(8, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 90)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0])


def bert() -> nn.Module:
    """BERT-tiny by HuggingFace, dropout included."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(
        vocab_size=30522, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512,
        num_labels=4,
    ))  # fmt: skip


def images(classes: int = 10, shape: tuple[int, ...] = (3, 32, 32), samples: int = 5000) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(samples, *shape, generator=draw)
    y = torch.randint(classes, (samples,), generator=draw)
    return from_arrays(x, y, x[:100], y[:100], "noise")


def text(vocabulary: int, length: int, classes: int | None, samples: int = 5000) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(vocabulary, (samples, length), generator=draw)
    y = x.roll(-1, 1) if classes is None else torch.randint(classes, (samples,), generator=draw)
    return from_arrays(x, y, x[:100], y[:100], "noise")


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Dataset]]] = {
    "cnn": (cnn, images),
    "resnet": (resnet, images),
    "vit": (ViT, images),
    "lstm": (CharLSTM, lambda: text(90, 80, None)),
    "bert": (bert, lambda: text(30522, 128, 4)),
}


def outputs(found: Any) -> Tensor:
    return found if isinstance(found, Tensor) else found.logits


def loop(module: nn.Module, data: Dataset, args: argparse.Namespace) -> Callable[[], None]:
    """Return a round as anybody would write it."""
    device = torch.device(args.device)
    x, y = data.x_train.to(device), data.y_train.to(device)
    start = copy.deepcopy(module).to(device).state_dict()
    worker = copy.deepcopy(module).to(device).train()
    per = len(x) // CLIENTS

    def run() -> None:
        mean = {n: torch.zeros_like(p) for n, p in worker.named_parameters()}
        for c in range(CLIENTS):
            worker.load_state_dict(start)
            optimiser = torch.optim.SGD(worker.parameters(), 0.1, weight_decay=1e-3)
            for k in range(args.steps):
                at = c * per + (torch.arange(args.batch, device=device) + k * args.batch) % per
                with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
                    out = outputs(worker(x[at]))
                value = F.cross_entropy(out.flatten(0, -2).float(), y[at].flatten())
                optimiser.zero_grad()
                value.backward()
                nn.utils.clip_grad_norm_(worker.parameters(), 10.0)
                optimiser.step()
            for n, p in worker.named_parameters():
                mean[n] += p.detach() / CLIENTS

    return run


def ours(module: nn.Module, data: Dataset, args: argparse.Namespace) -> tuple[Callable[[], None], Any]:
    """Return a round by the engine that ``auto`` takes."""
    settings = {
        "cohort": CLIENTS, "rounds": 1000, "local_steps": args.steps, "batch_size": args.batch, "eval_every": 10**6,
        "device": args.device, "precision": args.precision, "partition": "iid", "clients": CLIENTS,
        "engine": args.engine,
    }  # fmt: skip
    simulation, _ = assemble_objects(module, data, "fedavg", "cross_entropy", "uniform", None, settings)
    return simulation.advance, simulation


def seconds(run: Callable[[], Any], device: str, times: int) -> list[float]:
    out = []
    for _ in range(times):
        begun = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        out.append(time.perf_counter() - begun)
    return out


def measure(name: str, make: Callable[[], nn.Module], data: Dataset, args: argparse.Namespace) -> dict[str, Any]:
    """Return the times of the loop and of ours, the first round apart."""
    torch.manual_seed(0)
    module = make()
    row: dict[str, Any] = {"model": name, "parameters": sum(p.numel() for p in module.parameters())}
    plain = seconds(loop(module, data, args), args.device, 2)
    row["loop"] = min(plain)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        begun = time.perf_counter()
        try:
            run, simulation = ours(module, data, args)
            run()
            row["first"] = time.perf_counter() - begun
            row["all"] = seconds(run, args.device, args.rounds)
            row["ours"] = statistics.median(row["all"])
            row["engine"], row["why"] = simulation.engine.name, simulation.engine.why
            row["ratio"] = row["loop"] / row["ours"]
        except Exception as e:  # what cannot be run is said
            row["failed"] = f"{type(e).__name__}: {str(e).splitlines()[0][:300]}"
    row["said"] = sorted({str(w.message)[:300] for w in said if issubclass(w.category, RuntimeWarning)})
    if args.device != "cpu":
        row["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
        if args.profile and "ours" in row:
            row["kernels"], row["busy"] = kernels(run)
            row["limits"] = limits(module, data.x_train[: args.batch], data.y_train[: args.batch], CLIENTS, args.steps)
        torch.cuda.reset_peak_memory_stats()
    return row


def kernels(run: Callable[[], Any], most: int = 400) -> tuple[dict[str, float], float]:
    """Return milliseconds of a round by kernel, the longest first, and those in which any kernel runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    total: Counter[str] = Counter()
    spans = []
    for event in seen.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            total[event.name[:90]] += event.time_range.elapsed_us() / 1000
            spans.append((event.time_range.start, event.time_range.end))
    busy, reached = 0.0, 0.0
    for begin, end in sorted(spans):  # some run beside each other
        busy, reached = busy + max(0.0, end - max(begin, reached)), max(reached, end)
    return {n: round(v, 3) for n, v in total.most_common(most)}, round(busy / 1000, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--module", default="", help="path/to/file.py:factory of a module of your own")
    parser.add_argument("--inputs", default="3x32x32", help="shape of an input of that module")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    args.precision = args.precision or ("fp32" if args.device == "cpu" else "bf16")
    if args.module:
        shape = tuple(int(s) for s in args.inputs.split("x"))
        jobs = {args.module: (user_object(args.module, "model"), lambda: images(args.classes, shape))}
    else:
        jobs = {n: j for n, j in MODULES.items() if not args.only or n in args.only.split(",")}
    rows = []
    for name, (make, data) in jobs.items():
        if name == "bert" and importlib.util.find_spec("transformers") is None:
            print("bert: transformers is not installed", flush=True)
            continue
        rows.append(measure(name, make, data(), args))
        print(json.dumps(rows[-1]), flush=True)
        facts = {"code": code_facts(), "hardware": device_name(torch.device(args.device)), "precision": args.precision}
        args.out.write_text(json.dumps({**facts, "steps": args.steps, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
