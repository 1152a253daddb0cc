"""Launches of the kernels, with arguments as in training: noted, not run, so that no GPU is needed."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import torch

from benchmarks.kernels.candidates import waited
from fedsmoo.compiler.step import CompiledStep
from fedsmoo.compiler.trace import StepInputs
from fedsmoo.core import LocalRule, Round, Vectors
from fedsmoo.engines.oracles.opaque import OpaqueOracle
from fedsmoo.kernels import cast, embedding, place, pool
from fedsmoo.kernels.conv import choose, conv, grouped
from fedsmoo.kernels.conv.boxes import Box
from fedsmoo.kernels.conv.geometry import Geometry
from fedsmoo.kernels.gradients import GradientBuffers
from fedsmoo.kernels.noise import by_kernel
from fedsmoo.kernels.norms import group, layer
from fedsmoo.kernels.recurrent import steps as recurrence
from fedsmoo.kernels.recurrent import whole
from fedsmoo.kernels.resnet18 import gradient as resnet18
from fedsmoo.kernels.resnet18.shapes import STORED
from fedsmoo.kernels.resnet18.tiles import BOXES
from fedsmoo.kernels.runtime import Launch, noting
from fedsmoo.runs.build import make_algorithm


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
    """The launches of some steps of recurrences, forward and backward; of an LSTM also with all steps in one."""
    dtype, how = resnet18.PRECISIONS[precision]
    whole.has_room = lambda device: True  # asks no device what it has
    with noting() as noted:
        for kind in (*recurrence.GATES, "lstm"):
            whole.ON = kind == "lstm" and len(noted) > 0
            new = partial(torch.zeros, clients, dtype=dtype)
            wide = recurrence.GATES[kind] * hidden
            gx, dh = (new(steps, samples, n).transpose(0, 1) for n in (wide, hidden))
            w, b, state = new(wide, hidden), new(wide), new(samples, hidden)
            found = recurrence.forward(kind, gx, w, b, state, state, how)
            recurrence.backward(kind, True, dh, *found, w, state, state, state, how)
    whole.ON = False
    return noted


def embeddings(clients: int, samples: int, precision: str, words: int = 32) -> list[Launch]:
    """The launches of an embedding's gradient, of so many rows that their blocks are found in two steps."""
    dy = torch.zeros(clients, samples * words, 128, dtype=resnet18.PRECISIONS[precision][0])
    with noting() as noted:
        embedding.embedding_weight(dy, torch.zeros(dy.shape[:2], dtype=torch.int64), 5000)
    return noted


CONVOLUTIONS = (
    # channels, outputs, side, kernel, stride: every tile by boxes, then those without (three channels, twenty, strides)
    (64, 64, 32, 3, 1), (128, 64, 16, 3, 1), (128, 128, 16, 3, 1), (256, 256, 8, 3, 1), (512, 512, 4, 3, 1),
    (64, 64, 8, 1, 1), (3, 64, 32, 3, 1), (20, 50, 12, 5, 1), (64, 128, 32, 3, 2),
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
    """The launches of norms, a pool and of gradients that are brought to their places."""
    x = torch.zeros(clients, samples, 256, 64, dtype=resnet18.PRECISIONS[precision][0])
    gamma = torch.zeros(clients, 64)
    with noting() as noted:
        y, mean, rstd = group.forward(x, gamma, gamma, 2, 1e-5, x, True)
        group.backward(x, x, gamma, mean, rstd, 2, y, x, True)
        group.backward(x, x, gamma, mean, rstd, 2, None, None, False, gamma)
        for width, tokens in ((192, 64), (128, 128)):
            rows = torch.zeros(clients, samples, tokens, width)
            stats, dy = rows[..., :1].contiguous(), rows.to(x.dtype).transpose(1, 2).contiguous().transpose(1, 2)
            layer.backward(dy, rows, rows[:, 0, 0], stats, stats, rows, True)
        images, windows = x.unflatten(2, (16, 16)), Geometry((2, 2), (2, 2))
        maxima, which = pool.forward(windows, images, (8, 8), True)
        pool.backward(windows, maxima, which, (16, 16))
        for shape in ((clients, 4, 4096), (4, clients, 9, 64, 64)):
            place.place([torch.zeros(shape)], torch.zeros(clients, prod(shape[2:])))
        weights = [cast.Weight(0, 0, 9, 64, 64, 576), cast.Weight(36864, 36864, 0, 1, 64, 1)]
        cast.cast(torch.zeros(clients, 40000), weights, x.new_zeros(clients, 40000))
    return noted
