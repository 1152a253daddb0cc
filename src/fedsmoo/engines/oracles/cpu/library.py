"""By which library a CPU makes the products of one client: a setting of PyTorch for the whole process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedsmoo.engines.looking.observed import Observed
from fedsmoo.engines.task import Task
from fedsmoo.models.modules.process import NO_FLASH

CPUINFO = Path("/proc/cpuinfo")
ZEN5 = 26  # the family of AMD's first processors that multiply 512 bits at once
# Multiplications of the largest product of a client: below, oneDNN spends more on each call than it saves.
WORTH = 1 << 18
LONGEST = 1024  # positions: attention in whole matrices takes memory by the square of these
# A number that bf16 rounds to 1, and float32 does not.
FINE = 1 + 2**-10
ONEDNN: Any = torch.backends.mkldnn
FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


class Way(NamedTuple):
    """How products are made where PyTorch's own choice is slow.

    ``onednn``: oneDNN makes those in float32, in place of MKL. ``whole``: attention is made of products of whole
    matrices; PyTorch's fused kernel makes many small ones, which are slow by oneDNN and in bf16.
    """

    onednn: bool = False
    whole: bool = False


def best_way(task: Task, batch_size: int) -> Way:
    """Return the way in which one client's products are fastest on this CPU, by a rule of sizes.

    Those of many clients in one call stay as PyTorch has them: one by one, their matrices are too small.
    """
    if task.device.type != "cpu" or task.dtype != torch.float32:
        return Way()
    if task.precision != "bf16" and (batch_size * largest_matrix(task.model.module) < WORTH or not onednn_is_wider()):
        return Way()
    positions = attends_over(task)
    if positions > LONGEST:
        return Way()
    return Way(task.precision != "bf16", positions > 0)


def largest_matrix(module: nn.Module) -> int:
    """Return how many numbers the largest matrix of a module has that inputs are multiplied by.

    >>> largest_matrix(nn.Sequential(nn.Embedding(1000, 8), nn.Linear(8, 4)))
    32
    """
    looked_up = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)}
    matrices = (p.numel() for p in module.parameters() if p.dim() == 2 and id(p) not in looked_up)
    return max(matrices, default=0)


def attends_over(task: Task) -> int:
    """Return over how many positions a model attends by a fused kernel; 0 if it does not, or fails."""
    positions = [0]

    def note(operator: Any, given: Any, _: Any) -> None:
        if operator is FUSED:
            positions.append(given[1].shape[-2])

    w = task.model.initial().to(task.device, task.dtype).requires_grad_()  # or layers would take kernels of evaluation
    task.model.eval()
    with Observed(note), suppress(Exception):  # the user's own code: the first round says what is wrong
        task.model.forward(task.model.layout.split(w), task.inputs(task.data.x_train[:1]))
    return max(positions)


@cache
def onednn_is_wider() -> bool:
    """Whether oneDNN multiplies float32 matrices by wider vectors than MKL, which PyTorch takes by default.

    On AMD's processors MKL works with vectors of 256 bits, oneDNN with 512. PyTorch gives float32 products to oneDNN
    where they may be rounded to bf16; without Intel's AMX no product is, which is tried here as well.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not ONEDNN.is_available():
        return False
    vendor, family, flags = processor()
    if vendor != "AuthenticAMD" or family < ZEN5 or any(f.startswith("amx") for f in flags):
        return False
    with LIBRARY.taken(Way(onednn=True)):
        return all(is_exact(*shape) for shape in ((64, 64, 64), (512, 256, 512), (50, 1600, 512)))


def is_exact(m: int, k: int, n: int) -> bool:
    """Whether products of numbers that bf16 cannot hold are those of float32."""
    a, b = torch.full((m, k), FINE), torch.full((k, n), FINE)
    found = [a @ b, torch.bmm(a[None], b[None])[0], torch.addmm(torch.zeros(n), a, b)]
    return all(float((v / (k * FINE**2) - 1).abs().max()) < 1e-5 for v in found)


def processor() -> tuple[str, int, frozenset[str]]:
    """Return vendor, family and features of the CPU, as Linux tells them; empty elsewhere."""
    try:
        lines = CPUINFO.read_text().split("\n\n", 1)[0].splitlines()
    except OSError:
        return "", 0, frozenset()
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    family = told.get("cpu family", "")
    return told.get("vendor_id", ""), int(family) if family.isdigit() else 0, frozenset(told.get("flags", "").split())


def switch(way: Way) -> ExitStack:
    """Set PyTorch to a way; what is returned sets it back."""
    undo = ExitStack()
    if way.onednn:
        undo.callback(setattr, ONEDNN.matmul, "fp32_precision", ONEDNN.matmul.fp32_precision)
        ONEDNN.matmul.fp32_precision = "bf16"  # products may be rounded, but are not: see onednn_is_wider
    if way.whole:
        undo.enter_context(NO_FLASH.taken())
    return undo


class Library:
    """The way of the whole process.

    Rounds that want the same one train at the same time; those that want another wait until these have ended, so that
    no run's bits depend on what another thread does.
    """

    def __init__(self) -> None:
        self.changed, self.mine = threading.Condition(), threading.local()
        self.way, self.users, self.undo = Way(), 0, ExitStack()

    @contextmanager
    def taken(self, way: Way) -> Iterator[None]:
        """Make products in this way inside this context; where that is inside another one, in that one's."""
        if getattr(self.mine, "inside", False):
            yield
            return
        with self.changed:
            self.changed.wait_for(lambda: self.users == 0 or self.way == way)
            if self.users == 0:
                self.way, self.undo = way, switch(way)
            self.users += 1
        self.mine.inside = True
        try:
            yield
        finally:
            self.mine.inside = False
            with self.changed:
                self.users -= 1
                if self.users == 0:
                    self.undo.close()
                self.changed.notify_all()


LIBRARY = Library()
