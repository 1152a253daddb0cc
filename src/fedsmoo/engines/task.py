"""The task of a run: a model, a data set on a device, and a loss per sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedsmoo.core import FedsmooError
from fedsmoo.core.gradient import Running
from fedsmoo.data.batches.augment import prepare
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.targets import CLASSES, LABELS
from fedsmoo.engines.looking.fitting import refuse_reduced_loss
from fedsmoo.engines.looking.portions import evaluated_at_once
from fedsmoo.engines.oracles.products import IDLE, idle_precision
from fedsmoo.engines.statistics.padding import in_full_precision, judge_padding
from fedsmoo.metrics.metric import Metric, make_metrics
from fedsmoo.metrics.quantity import TRAIN_LOSS, Quantity
from fedsmoo.metrics.tally import Scores, Tally, Tallying
from fedsmoo.models.base import FlatModel
from fedsmoo.models.draws import AnyNoise
from fedsmoo.models.examine import SEEN, examine
from fedsmoo.models.hidden import refuse_other_batched
from fedsmoo.models.loss import (
    LOSSES,
    CrossEntropy,
    OnCopies,
    SampleLoss,
    cross_entropy,
    ignored_by,
    label_bound,
    refuse_trained,
)
from fedsmoo.models.modules.copies import copied
from fedsmoo.models.modules.process import uncompiled

Draws = dict[str, Tensor]
Answers = Callable[[Tensor, Tensor], Tensor]  # (w, stored samples) -> outputs in eval mode
FIRST = torch.preserve_format


@dataclass(frozen=True)
class Batch:
    """Samples of one step: of one client (``x [B, ...]``) or of C clients (``x [C, B, ...]``).

    ``weight`` holds 1 / batch size for real samples and 0 for padding, so a client's loss is ``sum(weight * loss)``;
    of data with weights it is multiplied by a sample's own.
    ``real`` counts the samples that are no padding, of a model that draws or whose samples see each other. ``noise`` is
    where random layers of the model draw: every gradient of a step sees the same masks. ``running`` are the statistics
    of models that have some.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    noise: AnyNoise | None = None
    real: Tensor | None = None
    running: Running | None = None


class Samples(NamedTuple):
    """Samples and their labels, as a data set holds them."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Task:
    """The model, the data on its device, the loss and the metrics; all vectors in ``dtype``.

    Raises:
        FedsmooError: for a precision that the device does not have, or a model that draws numbers in a way that cannot
            follow the seed.
    """

    model: FlatModel
    data: Dataset
    device: torch.device
    dtype: torch.dtype = torch.float32
    loss: SampleLoss = cross_entropy
    augment: bool = False
    precision: str = "fp32"  # of the products: bf16, or on a GPU tf32 or fp32
    held: Samples | None = None  # training samples that nobody trains on, for validation
    metrics: tuple[Metric, ...] = ()  # what is evaluated, the first of which leads; none: what goes with the targets
    staged: bool = False  # whether samples lie in the host's memory, from where batches are copied to the device

    # Mean and standard deviation of the channels, on the device: nothing is copied in the hot loop.
    scale: tuple[Tensor | None, Tensor | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if idle_precision(self.precision, self.device):
            raise FedsmooError(f"{IDLE}: set precision to fp32, or use a GPU")
        if self.precision == "bf16" and self.dtype == torch.float64:
            raise FedsmooError("precision is bf16, but dtype is float64, whose products are not rounded: choose one")
        known = self.data.mean is not None and self.data.std is not None
        values = (self.data.mean, self.data.std) if known else (None, None)
        scale = tuple(None if v is None else torch.tensor(v, dtype=self.dtype, device=self.device) for v in values)
        object.__setattr__(self, "scale", scale)
        found = self.metrics or make_metrics(None, self.data.target)
        if self.data.target == CLASSES:
            found = tuple(m.ignoring(ignored_by(self.loss)) for m in found)
        elif self.data.target == LABELS:
            found = tuple(m.saying_above(label_bound(self.loss)) for m in found)
        object.__setattr__(self, "metrics", found)
        refuse_trained(self.loss)
        if isinstance(self.loss, nn.Module):  # which may hold tensors, such as weights of classes
            object.__setattr__(self, "loss", copied(self.loss).to(self.device, self.dtype))
        with uncompiled(), in_full_precision(self.model, self.device):  # or what is compared would differ by rounding
            self._look()

    def _look(self) -> None:
        """Look at a model and a loss before they are trained, once: what they draw, keep, and make of padding."""
        ours = self.loss in LOSSES.values() or isinstance(self.loss, CrossEntropy)
        if self.model.random is not None and (ours or self.model.looked_at):
            return
        self.model.looked_at = True
        x, y = self.inputs(self.data.x_train[:SEEN]), self.targets(self.data.y_train[:SEEN])
        wrote = set[bool]()

        def losses(out: Tensor, n: int = SEEN) -> Tensor:
            mine, version = y[:n].clone(), out._version
            each = self.loss(out, mine)
            wrote.add(out._version > version or mine._version > 0)
            return each

        if self.model.random is None:
            try:
                examine(self.model, x, losses, self.inputs(self.data.x_train[-len(x) :]))
            except FedsmooError:
                if not ours:
                    refuse_reduced_loss(self)  # what a loss draws or keeps seems to be the model's
                raise
            if self.model.batched is not None:
                refuse_other_batched(self.model, x)
        judge_padding(self.model, x, losses)
        if True in wrote:
            object.__setattr__(self, "loss", OnCopies(self.loss))

    def inputs(self, x: Tensor, draws: Draws | None = None, channels_first: bool = True) -> Tensor:
        """Return stored samples as the model takes them: images normalised (and augmented), floats cast, text as is."""
        return prepare(x.to(self.device), draws, *self.scale, self.dtype, channels_first=channels_first)

    def pick(self, index: Tensor, test: bool = False) -> Samples:
        """Return samples of the training part, or of the test part, by their numbers; they lie where the data does."""
        x, y = self.test if test else (self.data.x_train, self.data.y_train)
        index = index.to(x.device)
        return Samples(x[index], y[index])

    def batch(
        self,
        index: Tensor,
        weight: Tensor,
        draws: Draws | None = None,
        channels_first: bool = True,
        found: Samples | None = None,
    ) -> Batch:
        """Return the training samples ``index [..., B]`` as a batch; weights of samples count as well.

        ``found`` are those samples, where they were copied to the device before.
        """
        real = (weight > 0).sum(-1) if self.model.random or self.model.padding != "free" else None
        if self.data.weights is not None:
            weight = weight * self.data.weights[index].to(weight.dtype)
        x, y = found or self.pick(index)
        return Batch(self.inputs(x, draws, channels_first), self.targets(y), weight, real=real)

    def targets(self, y: Tensor) -> Tensor:
        """Return stored targets as losses take them: numbers and labels in the type of the vectors, classes as is."""
        return y.to(self.device, self.dtype if y.is_floating_point() else None)

    def holding(self, index: np.ndarray) -> Task:
        """Return the task with some of its training samples to validate on."""
        return replace(self, held=self.pick(torch.from_numpy(index)))

    @property
    def lead(self) -> Quantity:
        """What models are compared by: the first metric or, without a test part, the training loss."""
        return self.metrics[0].quantity if self.data.has_test else TRAIN_LOSS

    @property
    def products(self) -> str:
        """The precision that products are made in: a CPU has no tf32."""
        return self.precision if self.device.type == "cuda" or self.precision == "bf16" else "fp32"

    @property
    def test(self) -> Samples:
        """The test part."""
        return Samples(self.data.x_test, self.data.y_test)

    @cached_property
    def portion(self) -> int:
        """How many samples are evaluated at once: the model is looked at for that once, at its first weights."""
        return evaluated_at_once(self, self.model.initial().to(self.device, self.dtype))

    def answers(self, w: Tensor, x: Tensor, order: torch.memory_format = FIRST) -> Tensor:
        """Return the outputs of one model on stored samples, in eval mode.

        ``order`` is that of the inputs in memory: images may have their channels last there.
        """
        self.model.eval()
        with torch.no_grad():
            return self.model.forward(self.model.layout.split(w), self.inputs(x).to(memory_format=order))

    def evaluate(self, w: Tensor, on: Samples | None = None, answers: Answers | None = None) -> Scores:
        """Return loss and metrics of one model on the test part, or on other samples, by its ``answers``."""
        on, answers = on or self.test, answers or self.answers
        return self.tally((answers(w, x) for x in on.x.split(self.portion)), self.portion, on).scores(on.y)

    def tally(self, answers: Iterable[Tensor], size: int, on: Samples) -> Tally:
        """Return the sums of losses and metrics of ``answers`` to samples, ``size`` at a time."""
        adding = self.tallying(self.metrics, len(on.y))
        with torch.no_grad():
            for out, y in zip(answers, on.y.split(size), strict=True):
                adding.add(out, y.to(self.device))
        return adding.tally()

    def tallying(self, metrics: tuple[Metric, ...], samples: int) -> Tallying:
        """Return what adds up losses and metrics over so many samples."""
        return Tallying(metrics, lambda out, y: self.loss(out, self.targets(y)), samples, self.device)
