"""Hand-written GPU kernels with a client axis; importing this needs neither Triton nor a GPU."""

from fedsmoo.kernels.resnet18.shapes import from_torchvision, live_layout, to_torchvision
from fedsmoo.kernels.runtime import available

__all__ = ["available", "from_torchvision", "live_layout", "to_torchvision"]
