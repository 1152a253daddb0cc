"""What is minimised: a model, a data set on a device, and a loss per sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.core import FedsmooError
from fedsmoo.core.noise import Noise
from fedsmoo.data.batches.augment import prepare
from fedsmoo.data.dataset import Dataset
from fedsmoo.models.base import FlatModel
from fedsmoo.models.examine import SEEN, examine

# outputs [B, ...], labels [B, ...] -> one loss per sample [B]
SampleLoss = Callable[[Tensor, Tensor], Tensor]
Draws = dict[str, Tensor]


IDLE = "precision is bf16, but a CPU computes in float32"


def idle_precision(precision: str, device: torch.device) -> bool:
    """Whether a precision is part of a run's name, but not of what this device computes."""
    return precision == "bf16" and device.type == "cpu"


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per sample; where every position of a sample has a label, their mean."""
    loss = F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
    return loss if loss.dim() == 1 else loss.flatten(1).mean(1)


@dataclass(frozen=True)
class Batch:
    """Samples of one step: of one client (``x [B, ...]``) or of C clients (``x [C, B, ...]``).

    ``weight`` holds 1 / batch size for real samples and 0 for padding, so a client's loss is ``sum(weight * loss)``.
    ``noise`` is where random layers of one client's model draw: every gradient of a step sees the same masks.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    noise: Noise | None = None


class Samples(NamedTuple):
    """Samples and their labels, as a data set holds them."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Task:
    """The model, the data on its device, and the loss; all vectors in ``dtype``."""

    model: FlatModel
    data: Dataset
    device: torch.device
    dtype: torch.dtype = torch.float32
    loss: SampleLoss = cross_entropy
    augment: bool = False
    precision: str = "fp32"  # of the products on a GPU: fp32, tf32 or bf16
    held: Samples | None = None  # training samples that nobody trains on, for validation

    # Mean and standard deviation of the channels, on the device: nothing is copied in the hot loop.
    scale: tuple[Tensor | None, Tensor | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if idle_precision(self.precision, self.device):
            raise FedsmooError(f"{IDLE}: leave precision out, or use a GPU")
        known = self.data.mean is not None and self.data.std is not None
        values = (self.data.mean, self.data.std) if known else (None, None)
        scale = tuple(None if v is None else torch.tensor(v, dtype=self.dtype, device=self.device) for v in values)
        object.__setattr__(self, "scale", scale)
        if self.model.random is None:
            x, y = self.data.x_train[:SEEN], self.data.y_train[:SEEN]
            examine(self.model, self.inputs(x), lambda out: self.loss(out, y))

    def inputs(self, x: Tensor, draws: Draws | None = None, channels_first: bool = True) -> Tensor:
        """Stored samples as the model takes them: images normalised (and augmented), floats cast, text as it is."""
        return prepare(x, draws, *self.scale, self.dtype, channels_first=channels_first)

    def batch(self, index: Tensor, weight: Tensor, draws: Draws | None = None, channels_first: bool = True) -> Batch:
        """The training samples ``index [..., B]``."""
        return Batch(self.inputs(self.data.x_train[index], draws, channels_first), self.data.y_train[index], weight)

    @property
    def test(self) -> Samples:
        """The test part."""
        return Samples(self.data.x_test, self.data.y_test)

    def evaluate(self, w: Tensor, size: int = 1000, on: Samples | None = None) -> tuple[float, float]:
        """Accuracy and mean loss of one model on the test part, or on other samples, ``size`` at a time."""
        parameters, on = self.model.layout.split(w), on or self.test
        self.model.eval()
        with torch.no_grad():
            return means(self.tally(lambda x: self.model.forward(parameters, x), size, on), on)

    def tally(self, outputs: Callable[[Tensor], Tensor], size: int, on: Samples, channels_first: bool = True) -> Tensor:
        """Correct answers and summed loss on samples of what ``outputs`` makes of their inputs, left on the device."""
        correct = torch.zeros((), dtype=torch.float64, device=self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        for x, y in zip(on.x.split(size), on.y.split(size), strict=True):
            out = outputs(self.inputs(x, channels_first=channels_first))
            correct += (out.argmax(-1) == y).sum()
            loss += self.loss(out, y).sum()
        return torch.stack([correct, loss])


def means(tally: Tensor, on: Samples) -> tuple[float, float]:
    """Accuracy and mean loss from a :meth:`Task.tally` of samples."""
    right, total = tally.tolist()  # one transfer
    return right / on.y.numel(), total / len(on.y)
