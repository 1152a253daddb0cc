"""Generated passes run where the kernels do: on a GPU, or on the CPU under Triton's interpreter."""

from kernels.conftest import device

__all__ = ["device"]
