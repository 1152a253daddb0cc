"""ResNet-18-GN on 32x32 images without its dead weights.

On the small maps of the last stage most taps of a padded 3x3 kernel never meet a pixel: 62% of the parameters get a
zero gradient in every method. They are left out of the flat vector, and zeros are padded back on export.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsmoo.kernels.resnet18.shapes import IMAGE_CHANNELS, IMAGE_SIDE, from_torchvision, live_layout, to_torchvision
from fedsmoo.models.base import FlatModel
from fedsmoo.models.draws import AnyNoise
from fedsmoo.models.modules.call import norms_of
from fedsmoo.models.modules.outputs import unrounded
from fedsmoo.models.resnet import ResNet18GN
from fedsmoo.models.resnet_batched import forward as batched_forward


class LiveResNet(FlatModel):
    """The live weights of a :class:`ResNet18GN`; exports to torchvision's full layout."""

    def __init__(self, module: ResNet18GN) -> None:
        super().__init__(module)
        self.layout = live_layout(module.fc.out_features)
        self.layout.words = {"norms": norms_of(module)}
        self.batched = batched_forward

    @staticmethod
    def fits(module: nn.Module, shape: tuple[int, int, int]) -> bool:
        """Return whether the live layout describes this module on images of this shape."""
        return (
            shape == (IMAGE_CHANNELS, IMAGE_SIDE, IMAGE_SIDE)
            and isinstance(module, ResNet18GN)
            and module.bn1.num_groups == 2
            and all(p.requires_grad for p in module.parameters())
            and not list(module.buffers())
        )

    def initial(self) -> Tensor:
        return self.flatten({n: p.detach() for n, p in self.module.named_parameters()})

    def forward(self, parameters: Mapping[str, Tensor], x: Tensor, noise: AnyNoise | None = None) -> Tensor:
        return unrounded(functional_call(self.module, to_torchvision(self.layout.join(parameters)), (x,)))

    def state_dict(self, w: Tensor, statistics: Tensor | None = None) -> dict[str, Tensor]:
        with torch.no_grad():
            return {n: p.clone() for n, p in to_torchvision(w).items()}

    def flatten(self, state: Mapping[str, Tensor]) -> Tensor:
        return from_torchvision(dict(state))
