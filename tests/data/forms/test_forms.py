"""Data in every form that docs/data.md has in its table: the content, the clients and the numbers of four arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import fedsmoo
from fedsmoo import read_data, simulate

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 5)).astype(np.float32), np.arange(60) % 3
IMAGES = RNG.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8)
CUT, CLIENTS = 40, (10, 14, 16)  # training samples, and how many of them each client has
ENDS = np.cumsum(CLIENTS)
NATURAL = [np.arange(end - n, end) for n, end in zip(CLIENTS, ENDS, strict=True)]
WHO = np.repeat(np.arange(3), CLIENTS)
TESTED = np.array([0] * 5 + [1] * 7 + [2] * 8)  # whose the test samples are


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))


class Pairs(Dataset):
    """Items that are made when they are asked for, as most data sets of PyTorch do."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


class Named(Pairs):
    def __getitem__(self, i):
        return {"features": torch.from_numpy(self.x[i]), "label": torch.tensor(int(self.y[i])), "file": f"{i}.png"}


class Pictures(Pairs):
    """As torchvision's: ``.data`` and ``.targets``, and PIL images of them."""

    def __init__(self, data, targets):
        self.data, self.targets = data, targets
        super().__init__(data, targets)

    def __getitem__(self, i):
        from PIL import Image

        return Image.fromarray(self.data[i]), int(self.targets[i])


def halves(make: Callable[..., Any], x: np.ndarray = X) -> tuple[Any, Any]:
    return make(x[:CUT], Y[:CUT]), make(x[CUT:], Y[CUT:])


def tensors(x: np.ndarray, y: np.ndarray) -> TensorDataset:
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


def parts_of_one() -> tuple[Any, Any]:
    whole = Pairs(X, Y)
    return ConcatDataset([Subset(whole, range(15)), Subset(tensors(X, Y), range(15, CUT))]), Subset(
        whole, range(CUT, 60)
    )


def frames() -> tuple[Any, Any]:
    table = pd.DataFrame(X, columns=list("abcde")).assign(kind=Y, hospital=[f"h{i}" for i in [*WHO, *TESTED]])
    return table[:CUT], table[CUT:]


def clients_sets() -> dict[str, Any]:
    tests = np.split(np.arange(CUT, 60), np.flatnonzero(np.diff(TESTED)) + 1)
    makes = (tensors, Pairs, lambda x, y: (x, y))
    both = zip(makes, NATURAL, tests, strict=True)
    return {f"phone {k}": (make(X[i], Y[i]), make(X[t], Y[t])) for k, (make, i, t) in enumerate(both)}


@dataclasses.dataclass(frozen=True)
class Form:
    """Data in a form, how it is read, and what it holds as arrays."""

    make: Callable[[Any], Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    x: np.ndarray = dataclasses.field(default_factory=lambda: X, repr=False)
    natural: bool = False


# By the names that the table of docs/data.md has for them.
FORMS = {
    "four arrays": Form(lambda _: (X[:CUT], Y[:CUT], X[CUT:], Y[CUT:])),
    "pairs of arrays": Form(lambda _: halves(lambda x, y: (x, y.tolist()))),
    "TensorDataset": Form(lambda _: halves(tensors)),
    "Dataset of pairs": Form(lambda _: halves(Pairs)),
    "Dataset of dicts": Form(lambda _: dict(zip(("train", "test"), halves(Named), strict=True))),
    "Subset, ConcatDataset": Form(lambda _: parts_of_one()),
    "PIL images": Form(lambda _: halves(Pictures, IMAGES), x=IMAGES),
    "DataFrame": Form(lambda _: frames(), {"y": "kind", "client": "hospital"}, natural=True),
    "a set for each client": Form(lambda _: clients_sets(), natural=True),
}


def arrays(form: Form) -> fedsmoo.Dataset:
    return read_data((form.x[:CUT], Y[:CUT], form.x[CUT:], Y[CUT:]))


def module(data: fedsmoo.Dataset) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(data.x_train[0].numel(), 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("name", FORMS)
def test_a_form_holds_what_the_arrays_hold_and_trains_to_the_same_numbers(name, tmp_path):
    form = FORMS[name]
    data, same = read_data(form.make(tmp_path), **form.options), arrays(form)
    assert data.fingerprint == same.fingerprint
    assert (data.name, data.classes) == (same.name, same.classes)
    assert (data.mean, data.std) == (same.mean, same.std)
    if form.natural:
        assert [i.tolist() for i in data.natural] == [i.tolist() for i in NATURAL]
        assert [i.tolist() for i in data.natural_test] == [np.flatnonzero(k == TESTED).tolist() for k in range(3)]
    for engine in ("serial", "vmap", "batched"):
        numbers = {"rounds": 2, "cohort": 2, "local_steps": 2, "batch_size": 8, "lr": 0.1, "engine": engine}
        here = simulate(module(data), form.make(tmp_path), "fedavg", client_indices=NATURAL,
                        dataset_options=form.options, **numbers)  # fmt: skip
        there = simulate(module(same), same, "fedavg", client_indices=NATURAL, **numbers)
        assert torch.equal(here.server.w, there.server.w)
        assert [r.test_loss for r in here.history] == [r.test_loss for r in there.history]
