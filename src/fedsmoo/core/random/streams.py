"""Random numbers from named streams, never from a global generator.

A stream is named by ``(seed, purpose, round, client)``. The same name gives the same numbers on every engine, after a
resume, and whoever else is in the cohort.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def stream(seed: int, purpose: str, *where: int) -> np.random.Generator:
    """Return the NumPy generator of one named stream of random numbers: the same seed and names give the same draws.

    Zeros at the end of ``where`` name nothing: ``("x", 3)`` and ``("x", 3, 0)`` are one stream. What is drawn for a
    round and what for each of its clients therefore needs two purposes.

    >>> bool(stream(0, "batches", 3, 17).integers(100) == stream(0, "batches", 3, 17).integers(100))
    True
    """
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *where])))


def torch_stream(seed: int, purpose: str, *where: int) -> torch.Generator:
    """Return the stream as a generator of PyTorch's, for code that needs one, such as the initialisation of a model."""
    return torch.Generator().manual_seed(int(stream(seed, purpose, *where).integers(2**63 - 1)))
