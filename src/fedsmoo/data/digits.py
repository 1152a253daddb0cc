"""Handwritten digits, 1,797 images of 8x8 that come inside scikit-learn: the data set that needs no download.

Reference: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998
(its test part, as scikit-learn ships it).
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedsmoo.core.random.streams import stream
from fedsmoo.core.share import count_of_share
from fedsmoo.data.dataset import Dataset

TEST_SHARE = 0.2


def digits() -> Dataset:
    """Return the digits as float images ``[N, 1, 8, 8]`` in 0..1, with a fixed test part of a fifth of every class."""
    images, labels = read_images()
    x = torch.from_numpy((images / 16.0).astype(np.float32)[:, None])
    y = torch.from_numpy(labels.astype(np.int64))
    train, test = split_indices()
    return Dataset(
        name="digits",
        x_train=x[train],
        y_train=y[train],
        x_test=x[test],
        y_test=y[test],
        classes=10,
        class_names=tuple(str(d) for d in range(10)),
    )


@cache
def read_images() -> tuple[np.ndarray, np.ndarray]:
    """Return images ``[N, 8, 8]`` in 0..16 and labels, read once per process: a comparison asks for them in every run.

    Read from scikit-learn's file, because importing scikit-learn takes as long as importing PyTorch.
    """
    spec = find_spec("sklearn")
    places = spec.submodule_search_locations or [] if spec is not None else []
    files = [file for place in places if (file := Path(place, "datasets", "data", "digits.csv.gz")).is_file()]
    if not files:  # a release that keeps it elsewhere
        from sklearn.datasets import load_digits

        bunch = load_digits()
        return bunch.images, bunch.target
    table = np.loadtxt(files[0], delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


@cache
def split_indices() -> tuple[np.ndarray, np.ndarray]:
    """Return the samples to train on and those to test on, drawn once per process."""
    return stratified(read_images()[1], TEST_SHARE, stream(0, "digits test part"))


def stratified(labels: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Sorted indices of a training and a test part; of every class the nearest whole number to ``share`` is tested."""
    test = []
    for k in np.unique(labels):
        mine = np.flatnonzero(labels == k)
        test.append(rng.permutation(mine)[: count_of_share(mine.size, share, round)])
    chosen = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(labels.size), chosen), chosen
