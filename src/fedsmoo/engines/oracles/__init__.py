"""Gradient oracles: plain PyTorch for one client or many, and hand-written kernels."""
