"""Where a round of any module spends its time, beside what arithmetic and memory allow.

What a module needs is counted from one client's gradient on one batch, operator by operator: FLOP as PyTorch's
``torch.utils.flop_counter`` counts them, bytes as every tensor that the operator reads or writes, once, at two bytes a
number. Pointwise operators are taken as one pass forward and one backward: what they hand to each other costs nothing,
only what comes from other operators, goes to them, or is kept for the backward pass. The limit of an operator is the
longer of FLOP / 790 TFLOP/s and bytes / 4.2 TB/s; those of all operators, steps and clients add up.

PYTHONPATH=src python3 -m benchmarks.gpu.modules --profile --out modules.json    # measures and counts
PYTHONPATH=src python -m benchmarks.gpu.limits results/gpu/modules.json          # adds limits to rows that have none
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FLOPS, BYTES = 790e12, 4.2e12  # a second
UPDATE = 14  # bytes a number: the gradient, twice (its norm first), the weights read and written, and written in bf16
PRODUCTS, NORMS, ATTENTION = "convolutions and matrix products", "norms", "attention"
POINTWISE, METHOD, MOVES = "pointwise, pooling, sums", "update and its norm", "gather, place, embedding"
GROUPS = (PRODUCTS, NORMS, ATTENTION, POINTWISE, METHOD, MOVES)

# What an operator is called, and what a kernel is called; the first that matches.
OPERATORS = {
    r"scaled_dot_product|_softmax|safe_softmax": ATTENTION,
    r"group_norm|layer_norm|batch_norm": NORMS,
    r"convolution|mm\b|bmm|mm\.|linear": PRODUCTS,
    r"embedding|index": MOVES,
}
KERNELS = {
    r"sdpa|scaled_dot_product|flash|fmha|softmax|compute_dot_do_o|convert_dq": ATTENTION,
    r"vector_norm|vector_pass|fold_kernel": METHOD,
    r"^norm_|layer_norm|group_norm|batch_norm": NORMS,
    r"nvjet|cutlass|gemm|cublas|^cudnn|xmma|splitK": PRODUCTS,
    r"^(pixels|weight|weight_boxes|weight_sums|patches|forward|backward|data|grouped(_data|_weight)?)_kernel": PRODUCTS,
    r"^(rows|taps|cast)_kernel|place|index_select|embedding|radix|scatter|compute_grad_weight|copy__index": MOVES,
}
LOSS = re.compile(r"log_softmax")


def group_of(name: str, patterns: dict[str, str]) -> str:
    """The group of an operator or a kernel by its name; what is left is pointwise."""
    if LOSS.search(name):
        return POINTWISE
    return next((group for pattern, group in patterns.items() if re.search(pattern, name)), POINTWISE)


class Counted(TorchDispatchMode):
    """Counts what every operator computes, reads and writes."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import flop_registry  # imports Triton, of which tests ask that it is interpreted

        super().__init__()
        self.counts = flop_registry
        self.flop: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.backward = False  # whether the backward pass has begun
        self.made: dict[int, bool] = {}  # by a pointwise operator: in which pass
        self.moved: set[tuple[int, str]] = set()  # by pointwise passes, and so counted
        self.kept: list[Tensor] = []  # so that no block of memory is used for two tensors

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        if func.is_view or not made or not any(t.is_floating_point() for t in made):
            return out
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        self.kept += [*given, *made]
        group = group_of(func.name(), OPERATORS)
        if group == POINTWISE:
            self.pointwise(given, made)
            return out
        for t in given:
            if self.key(t) in self.made:
                self.move(t, "written")
        count = self.counts.get(func._overloadpacket)
        work = count(*args, **(kwargs or {}), out_val=out) if count else attention(func.name(), args)
        moved = 2 * sum(t.numel() for t in (*given, *made))
        self.flop[group] += work
        self.bytes[group] += moved
        self.seconds[group] += max(work / FLOPS, moved / BYTES)  # type: ignore[assignment]
        return out

    def pointwise(self, given: list[Tensor], made: list[Tensor]) -> None:
        """Count what a pass of pointwise operators takes from others, or keeps from the forward for the backward."""
        for t in given:
            when = self.made.get(self.key(t))
            if when is None or when != self.backward:
                self.move(t, "read backward" if self.backward else "read forward")
                if when is not None:
                    self.move(t, "written")
        self.made |= {self.key(t): self.backward for t in made}

    def move(self, t: Tensor, how: str) -> None:
        if (self.key(t), how) not in self.moved:
            self.moved.add((self.key(t), how))
            self.bytes[POINTWISE] += 2 * t.numel()

    @staticmethod
    def key(t: Tensor) -> int:
        return t.untyped_storage()._cdata


def attention(name: str, args: Any) -> int:
    """FLOP of a CPU's fused attention: two products of queries, keys and values forward, five backward."""
    if "flash_attention_for_cpu" not in name:
        return 0
    backward = "backward" in name
    q, k = args[1:3] if backward else args[:2]
    return (10 if backward else 4) * q.numel() * k.shape[-2]


def limits(
    module: nn.Module, x: Tensor, y: Tensor, clients: int, steps: int
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Return FLOP, bytes and the least milliseconds of a round, by group; ``x`` and ``y`` are one client's batch."""
    module = copy.deepcopy(module).cpu().train()
    recurs = any(isinstance(m, nn.RNNBase) for m in module.modules())
    with torch.backends.mkldnn.flags(enabled=False) if recurs else nullcontext(), Counted() as found:
        out = module(x)
        out = out if isinstance(out, Tensor) else out.logits
        loss = F.cross_entropy(out.flatten(0, -2), y.flatten())
        found.backward = True
        loss.backward()
    numbers = sum(p.numel() for p in module.parameters())
    found.bytes[METHOD] += UPDATE * numbers
    found.bytes[MOVES] += (4 + 2) * x.numel() + 2 * 2 * numbers  # the batch; gradients put into the flat one
    for group in (METHOD, MOVES, POINTWISE):
        found.seconds[group] = found.bytes[group] / BYTES  # type: ignore[assignment]
    times = clients * steps
    return {
        g: {"flop": times * found.flop[g], "bytes": times * found.bytes[g], "ms": 1000 * times * found.seconds[g]}
        for g in GROUPS
    }


def measured(kernels: dict[str, float]) -> Counter[str]:
    """Milliseconds of a round by group."""
    out: Counter[str] = Counter()
    for name, ms in kernels.items():
        out[group_of(name, KERNELS)] += ms  # type: ignore[assignment]
    return out


def rows_of(row: dict[str, Any]) -> list[list[str]]:
    """A table's rows for one module: measured time, limit, and how many times the limit."""
    took, least, clock = measured(row["kernels"]), row["limits"], 1000 * row["ours"]
    out = []
    for g in sorted(GROUPS, key=lambda g: -took[g]):
        limit = least[g]["ms"]
        if took[g] < 0.005 * clock and limit < 0.005 * clock:
            continue
        ratio = f"{took[g] / limit:.1f}x" if took[g] and limit else ""
        sizes = f"{least[g]['flop'] / 1e12:.1f}", f"{least[g]['bytes'] / 1e9:.0f}"
        out.append([g, f"{took[g]:.1f}", f"{100 * took[g] / clock:.0f}%", *sizes, f"{limit:.1f}", ratio])
    busy = row.get("busy") or min(clock, sum(took.values()))
    idle = max(0.0, clock - busy)
    out.append(["between kernels", f"{idle:.1f}", f"{100 * idle / clock:.0f}%", "", "", "", ""])
    all_limits = sum(least[g]["ms"] for g in GROUPS)
    out.append(["a round by the clock", f"{clock:.1f}", "100%", "", "", f"{all_limits:.1f}",
                f"{clock / all_limits:.1f}x"])  # fmt: skip
    return out


def main() -> None:
    from benchmarks.gpu.modules import BATCH, CLIENTS, MODULES

    for path in map(Path, sys.argv[1:]):
        found = json.loads(path.read_text())
        for row in found["rows"]:
            if row["model"] in MODULES and "kernels" in row and "limits" not in row:
                make, data = MODULES[row["model"]]
                held = data()
                row["limits"] = limits(make(), held.x_train[:BATCH], held.y_train[:BATCH], CLIENTS, found["steps"])
                print(row["model"], json.dumps(row["limits"]))
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
