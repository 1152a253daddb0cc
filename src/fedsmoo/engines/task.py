"""What is minimised: a model, a data set on a device, and a loss per sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedsmoo.data.augment import prepare
from fedsmoo.data.dataset import Dataset
from fedsmoo.models.base import FlatModel

# outputs [B, ...], labels [B, ...] -> one loss per sample [B]
SampleLoss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy per sample; where every position of a sample has a label, their mean."""
    loss = F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction="none").view(y.shape)
    return loss if loss.dim() == 1 else loss.flatten(1).mean(1)


@dataclass(frozen=True)
class Batch:
    """Samples of one step: of one client (``x [B, ...]``) or of C clients (``x [C, B, ...]``).

    ``weight`` holds 1 / batch size for real samples and 0 for padding, so a client's loss is ``sum(weight * loss)``.
    """

    x: Tensor
    y: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Task:
    """The model, the data on its device, and the loss; all numbers in ``dtype``."""

    model: FlatModel
    data: Dataset
    device: torch.device
    dtype: torch.dtype = torch.float32
    loss: SampleLoss = cross_entropy
    augment: bool = False

    def inputs(self, x: Tensor, draws: dict[str, Tensor] | None = None) -> Tensor:
        """Stored samples as the model takes them: images normalised (and augmented), floats cast, text as it is."""
        if self.data.is_image:
            return prepare(x, draws, self.data.mean, self.data.std, self.dtype, channels_first=True)
        return x.to(self.dtype) if x.is_floating_point() else x

    def batch(self, index: Tensor, weight: Tensor, draws: dict[str, Tensor] | None = None) -> Batch:
        """The training samples ``index [..., B]``."""
        return Batch(self.inputs(self.data.x_train[index], draws), self.data.y_train[index], weight)

    def evaluate(self, w: Tensor, size: int = 1000) -> tuple[float, float]:
        """Accuracy and mean loss of one model on the test part."""
        parameters = self.model.layout.split(w)
        correct = torch.zeros((), dtype=torch.float64, device=self.device)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for x, y in zip(self.data.x_test.split(size), self.data.y_test.split(size), strict=True):
                out = self.model.forward(parameters, self.inputs(x))
                correct += (out.argmax(-1) == y).sum()
                loss += self.loss(out, y).sum()
        return correct.item() / self.data.y_test.numel(), loss.item() / len(self.data.y_test)
