"""The GPU kernels one by one: speed, tiles, registers, bits."""
