"""Gradients of ResNet-18-GN for many clients at once, on 32x32 images, as about 65 Triton launches.

Forward: each convolution normalises, adds its shortcut and applies the ReLU before it writes. Backward: each data
gradient passes the layer before it (ReLU, GroupNorm) before it writes, and weight gradients run beside that chain
on a stream of lower priority. Nothing synchronises with the host and every sum has a fixed order, so a call can be
captured in a CUDA graph and repeats to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.kernels.early import early_serves
from fedsmoo.kernels.gradients import GradientBuffers
from fedsmoo.kernels.resnet18.boxes import boxes_serve
from fedsmoo.kernels.resnet18.buffers import BlockBuffers, Buffers, Unit, norm_rows
from fedsmoo.kernels.resnet18.conv import conv_backward, conv_forward
from fedsmoo.kernels.resnet18.conv_weight import conv_weight, sum_splits
from fedsmoo.kernels.resnet18.head import ROWS, head_gradient, head_logits, head_weight, padded_classes, passes_norm
from fedsmoo.kernels.resnet18.norm import NormLayer, norm_backward, sum_parts
from fedsmoo.kernels.resnet18.pool import pool_backward
from fedsmoo.kernels.resnet18.shapes import STEM, STORED, WIDTHS, fine_offset, live_layout
from fedsmoo.kernels.resnet18.stem import stem_forward, stem_weight
from fedsmoo.kernels.resnet18.tiles import Tile, tiles_for
from fedsmoo.kernels.runtime import PRECISIONS, compiling, interpreted, require
from fedsmoo.kernels.streams import SideStream

MOST_SAMPLES = 2**31 // (STEM.side_out**2 * STEM.outside)  # whose largest maps 32 bits count the places of


class Weights(NamedTuple):
    """C weight vectors as the kernels read them.

    ``working`` is ``[C, P]`` in the compute type, for the convolutions; ``fine`` is float32 from
    :func:`fedsmoo.kernels.resnet18.shapes.fine_offset` on, for norms and the last layer.
    """

    working: Tensor
    fine: Tensor


class ResNet18Gradient:
    """Loss and gradient of ResNet-18-GN at C weight vectors on C batches, and its logits.

    ``loss_c = sum_b weight[c, b] * cross_entropy(logits[c, b], labels[c, b])``.

    Args:
        clients, batch: C and B; buffers for them are kept between calls.
        classes: outputs of the last layer.
        device: a CUDA device (or the CPU under Triton's interpreter).
        precision: ``bf16``, ``tf32`` or ``fp32`` (each product as three of tf32); norms, the last layer, sums and the
            gradient are float32 always.
        tiles: entries that replace those of the precision's table of tiles.
        overlap: run on streams of its own, weight gradients beside the rest.
        boxes: let the tensor memory unit bring tiles (default: of bfloat16, where there is one).

    >>> gradient = ResNet18Gradient(clients=10, batch=50)                       # doctest: +SKIP
    >>> grad, loss = gradient(w, images, labels, weight)                        # doctest: +SKIP
    """

    def __init__(
        self, clients: int, batch: int, classes: int = 10, device: torch.device | str = "cuda",
        precision: str = "bf16", tiles: Mapping[str, Tile] | None = None, overlap: bool = True,
        boxes: bool | None = None, eps: float = 1e-5,
    ) -> None:  # fmt: skip
        require(device)
        if precision not in PRECISIONS:
            raise unknown("precision", precision, PRECISIONS)
        if batch > MOST_SAMPLES:
            raise FedsmooError(
                f"a batch of {batch:,} samples is more than the kernels of ResNet-18-GN count, {MOST_SAMPLES:,}: use a "
                "smaller batch_size, or engine=vmap"
            )
        self.clients, self.batch, self.classes, self.eps = clients, batch, classes, eps
        self.device = torch.device(device)
        self.dtype, self.dot = PRECISIONS[precision]
        self.layout = live_layout(classes)
        boxes = boxes_serve(self.device, self.dtype) if boxes is None else boxes
        table = tiles_for(precision, clients, boxes) | dict(tiles or {})
        self.buffers = Buffers(clients, batch, self.layout, table, self.device, self.dtype)
        # The chain of layers is what a step waits for; weight gradients have time until it ends, and what else runs on
        # the device (another group's update moves bytes only) fills the rest.
        self.chain = SideStream(self.device, overlap, -2)
        self.side = SideStream(self.device, overlap, -1)
        self.aside = SideStream(self.device, overlap, -2)  # short kernels that the chain would wait for
        self.early = early_serves(self.device)
        self.fine = fine_offset(self.layout)
        self.losses = torch.empty(clients, batch, device=self.device)
        self.dlogits = torch.empty(clients, batch, padded_classes(classes), device=self.device)
        self.features_grad = torch.empty_like(self.buffers.blocks[-1].second.out)

    def weights(self, w: Tensor) -> Weights:
        """Return flat vectors ``w [C, P]``, float32, in :func:`fedsmoo.kernels.live_layout`'s order, as kernels read
        them: a copy in the compute type where that is another one."""
        return Weights(w.to(self.dtype), w[:, self.fine :])

    def output(self, gradients: Tensor) -> GradientBuffers:
        """Return ``out`` for a call that writes into ``gradients [C, P]``; of bfloat16, ``fine`` is a new tensor."""
        fine = gradients[:, self.fine :]
        if gradients.dtype != torch.float32:
            fine = torch.zeros(fine.shape, device=self.device)
        return GradientBuffers(gradients, fine, torch.empty(self.clients, device=self.device))

    def __call__(
        self, w: Tensor | Weights, images: Tensor, labels: Tensor, weight: Tensor,
        out: GradientBuffers | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return gradients ``[C, P]`` and losses ``[C]``, both float32 if ``out`` is not given.

        Args:
            w: ``[C, P]`` float32, or what :meth:`weights` made of it.
            images: ``[C, B, 32, 40, 4]``, normalised, from :func:`fedsmoo.kernels.resnet18.shapes.stored_images`.
            labels: ``[C, B]`` int64.
            weight: ``[C, B]`` float32; 1/n for each of n samples, 0 for padding.
            out: where to write, of :meth:`output`; numbers behind the last parameter of a row stay as they are. Without
                it, each call makes new tensors.

        Raises:
            FedsmooError: for tensors of another shape or type.
        """
        w = self._checked(w, images)
        if labels.shape != (self.clients, self.batch) or weight.shape != labels.shape:
            raise FedsmooError(
                f"labels {tuple(labels.shape)} and weight {tuple(weight.shape)} must both be "
                f"[{self.clients}, {self.batch}]"
            )
        if out is None:
            out = self.output(torch.zeros(self.clients, self.layout.size, device=self.device))
        with self.chain.beside():
            self._gradient(w, images, labels, weight, out)
        self.chain.join()
        return out.coarse, out.loss

    def _gradient(self, w: Weights, images: Tensor, labels: Tensor, weight: Tensor, out: GradientBuffers) -> None:
        self._forward(w, images, save=True)
        features = self._features()
        offset = self.layout.offsets["fc.weight"] - self.fine
        last = self.buffers.blocks[-1].second
        layer = self._layer(last, w)
        fused = passes_norm(self.classes, layer) and norm_rows(last.conv) == ROWS
        head_gradient(
            features, w.fine, offset, self.classes, labels, weight, self.losses, self.dlogits,
            dx=self.features_grad, before=layer if fused else None,
        )  # fmt: skip
        with self.side.beside():
            head_weight(features, self.dlogits, self.losses, out.fine, offset, self.classes, out.loss)
        if not fused:
            norm_backward(self.features_grad, layer, norm_rows(last.conv))
        for i in reversed(range(len(self.buffers.blocks))):
            self._block_backward(i, w, out.coarse)
        self._stem_backward(w, images, out)
        self.side.join()

    def logits(self, w: Tensor | Weights, images: Tensor) -> Tensor:
        """Return logits ``[C, B, classes]`` of C models on C batches, float32."""
        w = self._checked(w, images)
        self._forward(w, images, save=False)
        logits = torch.empty(self.clients, self.batch, self.classes, device=self.device)
        head_logits(self._features(), w.fine, self.layout.offsets["fc.weight"] - self.fine, logits)
        return logits

    def compile_ahead(self, threads: int = 8, logits: bool = True) -> None:
        """Compile the kernels in parallel, those of :meth:`logits` if asked; else they compile in the first call."""
        if interpreted():
            return
        w = torch.zeros(self.clients, self.layout.size, device=self.device)
        shape = (self.clients, self.batch, *STORED)
        images = torch.zeros(shape, dtype=self.dtype, device=self.device)
        labels = torch.zeros(self.clients, self.batch, dtype=torch.int64, device=self.device)
        out = self.output(torch.empty_like(w, dtype=self.dtype))  # as steps take it
        with compiling(threads):
            self(w, images, labels, torch.zeros(self.clients, self.batch, device=self.device), out)
            if logits:
                self.logits(w, images)

    def _checked(self, w: Tensor | Weights, images: Tensor) -> Weights:
        whole = w.working if isinstance(w, Weights) else w
        dtype = self.dtype if isinstance(w, Weights) else torch.float32
        if whole.shape != (self.clients, self.layout.size) or whole.dtype != dtype or whole.stride(-1) != 1:
            raise FedsmooError(
                f"weights are {tuple(whole.shape)} {whole.dtype}: expected rows of "
                f"[{self.clients}, {self.layout.size}] {dtype}"
            )
        expected = (self.clients, self.batch, *STORED)
        if images.shape != expected or images.dtype != self.dtype or not images.is_contiguous():
            raise FedsmooError(
                f"images are {tuple(images.shape)} {images.dtype}: expected contiguous {expected} {self.dtype}"
            )
        return w if isinstance(w, Weights) else self.weights(w)

    def _features(self) -> Tensor:
        return self.buffers.blocks[-1].second.out.view(self.clients, self.batch, WIDTHS[-1])

    def _forward(self, w: Weights, images: Tensor, save: bool) -> None:
        buffers, stem = self.buffers, self.buffers.stem
        stem_forward(
            stem.conv, images, w.working, stem.w_off, w.fine, stem.p_off, stem.xhat, stem.rstd,
            buffers.pooled, buffers.taken, buffers.tile("stem", stem.conv),
            precision=self.dot, eps=self.eps,
        )  # fmt: skip
        x = buffers.pooled
        for block in buffers.blocks:
            residual = x
            if block.down is not None:
                with self.side.beside():
                    self._conv(block.down, x, w, save, relu=False)
                residual = block.down.out
            self._conv(block.first, x, w, save)
            if block.down is not None:
                self.side.join()
            self._conv(block.second, block.first.out, w, save, residual=residual)
            x = block.second.out

    def _conv(
        self, unit: Unit, x: Tensor, w: Weights, save: bool, residual: Tensor | None = None, relu: bool = True
    ) -> None:
        conv_forward(
            unit.conv, x, w.working, unit.w_off, w.fine, unit.p_off, unit.out, self.buffers.tile("forward", unit.conv),
            residual=residual, relu=relu, xhat=unit.xhat if save else None, rstd=unit.rstd if save else None,
            precision=self.dot, eps=self.eps, early=self.early,
        )  # fmt: skip

    def _layer(self, unit: Unit, w: Weights, relu: bool = True) -> NormLayer:
        act = unit.out if relu else None
        return NormLayer(
            act, unit.xhat, unit.rstd, w.fine, unit.p_off, unit.dz, unit.dy, self.buffers.parts, unit.part_off
        )  # fmt: skip

    def _block_backward(self, i: int, w: Weights, grad: Tensor) -> None:
        """Go from ``dz`` and ``dy`` of the block's second convolution to those of the block before."""
        buffers, block = self.buffers, self.buffers.blocks[i]
        before = buffers.blocks[i - 1].second if i > 0 else None
        x = before.out if before is not None else buffers.pooled
        first, second, down = block.first, block.second, block.down
        assert second.dz is not None
        if down is not None:
            with self.aside.beside():
                norm_backward(second.dz, self._layer(down, w, relu=False), norm_rows(down.conv))
        conv_backward(
            second.conv, second.dy, w.working, second.w_off, buffers.tile("backward", second.conv),
            before=self._layer(first, w), precision=self.dot,
        )  # fmt: skip
        self.aside.join()
        with self.side.beside():
            self._weight(second, first.out, grad)
            self._weight(first, x, grad)
            if down is not None:
                self._weight(down, x, grad)
            if i == 0 and self.buffers.layer1_parts is not None:
                sum_splits(self.buffers.layer1_parts, grad, self.buffers.layer1[0])
        self._input_gradient(block, before, w)

    def _input_gradient(self, block: BlockBuffers, before: Unit | None, w: Weights) -> None:
        first, down, tile = block.first, block.down, self.buffers.tile("backward", block.first.conv)
        fused = block.dx is None and before is not None
        conv_backward(
            first.conv, first.dy, w.working, first.w_off, tile,
            out=block.dx, before=self._layer(before, w) if fused and before is not None else None,
            add=block.second.dz if down is None else None,
            dy_down=None if down is None else down.dy, down_off=0 if down is None else down.w_off,
            precision=self.dot,
        )  # fmt: skip
        if before is not None and block.dx is not None:
            norm_backward(block.dx, self._layer(before, w), norm_rows(before.conv))

    def _weight(self, unit: Unit, x: Tensor, grad: Tensor) -> None:
        out, offset = grad[None], unit.w_off
        if self.buffers.layer1_parts is not None and self.buffers.layer1[0] <= offset < self.buffers.layer1[1]:
            out, offset = self.buffers.layer1_parts, offset - self.buffers.layer1[0]
        conv_weight(
            unit.conv, x, unit.dy, out, offset, self.buffers.tile("weight", unit.conv),
            precision=self.dot,
        )  # fmt: skip

    def _stem_backward(self, w: Weights, images: Tensor, out: GradientBuffers) -> None:
        """Go through the pooling to the images, and add up all tiles of the norms' gradients beside that."""
        stem, d = self.buffers.stem, self.buffers.blocks[0].dx
        assert d is not None
        pool_backward(d, self.buffers.taken, self._layer(stem, w, relu=False))
        with self.aside.beside():
            sum_parts(self.buffers.parts, self.buffers.table, out.fine)
        stem_weight(
            stem.conv, images, stem.dy, self.buffers.stem_parts, 0, self.buffers.tile("stem-weight", stem.conv),
            precision=self.dot,
        )  # fmt: skip
        sum_splits(self.buffers.stem_parts, out.coarse, stem.w_off)
        self.aside.join()
