"""Random numbers from named streams, never from a global generator.

A stream is named by ``(seed, purpose, round, client)``. The same name gives the same numbers on every engine, after a
resume, and whoever else is in the cohort.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

GENERATOR = threading.RLock()  # PyTorch's global generator: one thread at a time seeds it, sets it back, or watches it


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


@contextmanager
def generator_apart(seed: int | None = None) -> Iterator[None]:
    """Have PyTorch's global generator for this thread alone, seeded if so asked, and leave it as it was.

    It is that of the whole process: what another thread seeds, or sets back, would decide what is drawn here.
    """
    with GENERATOR, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield
