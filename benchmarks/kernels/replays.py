"""Whether replays of one captured gradient of ResNet-18-GN give the same bits on a full GPU, and which buffer differs
first where they do not, by way and by kind of product.

PYTHONPATH=src python3 -m benchmarks.kernels.replays --replays 200 --out replays.json
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.candidates import waited
from fedsmoo.kernels.gradients import GradientBuffers
from fedsmoo.kernels.resnet18.gradient import ResNet18Gradient
from fedsmoo.kernels.resnet18.tiles import BF16, BOXES

QUEUED = 4  # replays between two looks: a full queue, as in a round
KINDS = ("forward", "backward", "weight")


def watched(gradient: ResNet18Gradient, out: GradientBuffers) -> Iterator[tuple[str, Tensor | None]]:
    """Yield what a gradient writes, in the order in which it is written, with names."""
    buffers = gradient.buffers
    yield from (("stem xhat", buffers.stem.xhat), ("pooled", buffers.pooled), ("taken", buffers.taken))
    for block in buffers.blocks:
        yield from ((f"{u.conv.name} out", u.out) for u in (block.down, block.first, block.second) if u is not None)
    yield "dlogits", gradient.dlogits
    for block in reversed(buffers.blocks):
        yield from ((f"{u.conv.name} dy", u.dy) for u in (block.second, block.down, block.first) if u is not None)
        yield f"{block.first.conv.name} dx", block.dx
    yield from (("stem dy", buffers.stem.dy), ("stem parts", buffers.stem_parts))
    yield from (("layer 1 parts", buffers.layer1_parts), ("norms' parts", buffers.parts))
    for name, value in gradient.layout.split(out.coarse).items():
        if gradient.layout.offsets[name] < gradient.fine:
            yield f"{name} gradient", value
    yield from (("fine gradient", out.fine), ("loss", out.loss))


def bits(value: Tensor) -> Tensor:
    """The numbers as integers, of which also two nan are equal."""
    return value.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[value.itemsize])


def differences(
    gradient: ResNet18Gradient, out: GradientBuffers, replay: Callable[[], object], looks: int
) -> Counter[str]:
    """Count after how many of some looks a buffer was the first that had other bits than after the first replay."""
    replay()

    def now() -> dict[str, Tensor]:
        return {name: bits(value) for name, value in watched(gradient, out) if value is not None}

    first, found = {name: value.clone() for name, value in now().items()}, Counter[str]()
    for _ in range(looks):
        for _ in range(QUEUED):
            replay()
        same = torch.stack([value.eq(first[name]).all() for name, value in now().items()]).tolist()
        found.update([name for name, equal in zip(first, same, strict=True) if not equal][:1])
    return found


def replayed(looks: int, clients: int = 10, **way: Any) -> Counter[str]:
    """Count the differences of a captured gradient of so many clients, taken in a way (see ResNet18Gradient)."""
    from benchmarks.kernels.gradient import CLASSES, inputs
    from benchmarks.kernels.timing import captured

    made = ResNet18Gradient(clients, 50, CLASSES, **way)
    made.compile_ahead(16, logits=False)
    data = inputs(clients, made.dtype)
    w, out = made.weights(data[0]), made.output(torch.zeros_like(data[0], dtype=made.dtype))
    return differences(made, out, captured(lambda: made(w, *data[1:], out=out)).replay, looks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--replays", type=int, default=200, help=f"looks at the bits, one after every {QUEUED} replays")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ways: dict[str, dict[str, Any]] = {
        "loads": {"boxes": False}, "boxes": {"boxes": True}, "boxes, one stream": {"boxes": True, "overlap": False},
        "boxes, waited for": {"boxes": True, "tiles": waited(BOXES)},
    }  # fmt: skip
    for kind in KINDS:
        others = {key: BF16[key] for key in BOXES if not key.startswith(kind)}
        ways[f"boxes of {kind} products only"] = {"boxes": True, "tiles": others}
    rows = {}
    for way, how in ways.items():
        found = replayed(options.replays, **how)
        rows[way] = {"looks": options.replays, "differ": found.total(), "first": dict(found.most_common())}
        print(f"{way:34s} {rows[way]}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
