"""Data in every form that docs/data.md has in its table, for tests of forms."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import fedsmoo
from fedsmoo import read_data
from fedsmoo.data.check import from_arrays
from fedsmoo.data.sources import load

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((60, 5)).astype(np.float32), np.arange(60) % 3
IMAGES = RNG.integers(0, 256, (60, 6, 6, 3), dtype=np.uint8)
CUT, CLIENTS = 40, (10, 14, 16)  # training samples, and how many of them each client has
ENDS = np.cumsum(CLIENTS)
NATURAL = [np.arange(end - n, end) for n, end in zip(CLIENTS, ENDS, strict=True)]
WHO = np.repeat(np.arange(3), CLIENTS)
TESTED = np.array([0] * 5 + [1] * 7 + [2] * 8)  # whose the test samples are


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


FRAME = pd.DataFrame(X, columns=list("abcde")).assign(kind=Y)


def frames() -> tuple[Any, Any]:
    table = FRAME.assign(hospital=[f"h{i}" for i in [*WHO, *TESTED]])
    return table[:CUT], table[CUT:]


def clients_sets() -> dict[str, Any]:
    tests = np.split(np.arange(CUT, 60), np.flatnonzero(np.diff(TESTED)) + 1)
    makes = (tensors, Pairs, lambda x, y: (x, y))
    both = zip(makes, NATURAL, tests, strict=True)
    return {f"phone {k}": (make(X[i], Y[i]), make(X[t], Y[t])) for k, (make, i, t) in enumerate(both)}


def huggingface(x: np.ndarray, y: np.ndarray, **more: Any) -> Any:
    """A data set of HuggingFace's, with classes by name."""
    from datasets import ClassLabel, Features, List, Value
    from datasets import Dataset as Table

    kinds = {"features": List(Value("float32"), length=5), "label": ClassLabel(names=["ant", "bee", "cat"])}
    features = Features(kinds | {n: Value("int64") for n in more})
    return Table.from_dict({"features": x, "label": y, **more}, features=features)


def huggingface_images(x: np.ndarray, y: np.ndarray) -> Any:
    from datasets import Dataset as Table
    from datasets import Features, Image, Value
    from PIL import Image as Picture

    features = Features({"image": Image(), "label": Value("int64")})
    return Table.from_dict({"image": [Picture.fromarray(i) for i in x], "label": y}, features=features)


def huggingface_parts(make: Callable[..., Any], x: np.ndarray = X) -> Any:
    from datasets import DatasetDict

    return DatasetDict(zip(("train", "test"), halves(make, x), strict=True))


# What tokenised text holds: tokens, and which of them count.
LENGTHS = 3 + np.arange(60) % 5
TOKENS = [[1 + (7 * i + t) % 20 for t in range(n)] for i, n in enumerate(LENGTHS)]
PADDED = np.zeros((60, 2, 7), np.int64)
for row, tokens in zip(PADDED, TOKENS, strict=True):
    row[:, : len(tokens)] = tokens, [1] * len(tokens)


def huggingface_tokens() -> Any:
    from datasets import Dataset as Table

    table = Table.from_dict({"text": ["..."] * 60, "input_ids": TOKENS, "attention_mask": [[1] * n for n in LENGTHS],
                             "label": Y})  # fmt: skip
    return table.select(range(CUT)), table.select(range(CUT, 60))


def table(**columns: Any) -> Any:
    from datasets import Dataset as Table

    return Table.from_dict(columns)


def flower() -> Any:
    """A partitioner of Flower's, which numbers its clients in an order of its own, and a test part."""
    from flwr_datasets.partitioner import NaturalIdPartitioner

    partitioner = NaturalIdPartitioner(partition_by="who")
    partitioner.dataset = huggingface(X[:CUT], Y[:CUT], who=WHO)
    return partitioner, huggingface(X[CUT:], Y[CUT:], who=TESTED)


def leaf_folder(folder: Path) -> str:
    """Files as LEAF writes them: some users in each."""
    for part, who, start in (("train", WHO, 0), ("test", TESTED, CUT)):
        (folder / "leaf" / part).mkdir(parents=True, exist_ok=True)
        for number, users in enumerate(([2], [0, 1])):
            mine = {f"u{u}": start + np.flatnonzero(who == u) for u in users}
            data = {u: {"x": X[i].astype(float).tolist(), "y": Y[i].tolist()} for u, i in mine.items()}
            table = {"users": list(data), "num_samples": [len(i) for i in mine.values()], "user_data": data}
            (folder / "leaf" / part / f"all_data_{number}.json").write_text(json.dumps(table))
    return f"leaf:{folder / 'leaf'}"


def table_files(folder: Path) -> str:
    (folder / "tables").mkdir(exist_ok=True)
    train, test = frames()
    train.to_parquet(folder / "tables" / "train.parquet")
    test.to_parquet(folder / "tables" / "test.parquet")
    return f"table:{folder / 'tables'}"


@dataclasses.dataclass(frozen=True)
class Form:
    """Data in a form, how it is read, and what it holds as arrays."""

    make: Callable[[Any], Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    x: np.ndarray = dataclasses.field(default_factory=lambda: X, repr=False)
    natural: bool = False
    tested: bool = True  # clients have test samples of their own
    inputs: tuple[str, ...] | None = None


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
    "HuggingFace features": Form(lambda _: huggingface_parts(huggingface)),
    "HuggingFace images": Form(lambda _: huggingface_parts(huggingface_images, IMAGES), x=IMAGES),
    "HuggingFace tokens": Form(lambda _: huggingface_tokens(), x=PADDED, inputs=("input_ids", "attention_mask")),
    "a set for each client": Form(lambda _: clients_sets(), natural=True),
    "Flower partitioner": Form(lambda _: flower(), natural=True, tested=False),
    "leaf:PATH": Form(leaf_folder, natural=True),
    "table:PATH": Form(table_files, {"y": "kind", "client": "hospital"}, natural=True),
}


def arrays(form: Form) -> fedsmoo.Dataset:
    return from_arrays(form.x[:CUT], Y[:CUT], form.x[CUT:], Y[CUT:], inputs=form.inputs)


class Bag(nn.Module):
    """The mean of the embedded tokens that count, as a model of text takes its inputs."""

    def __init__(self):
        super().__init__()
        self.words, self.last = nn.Embedding(21, 6), nn.Linear(6, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None]
        return self.last((self.words(input_ids) * mask).sum(1) / mask.sum(1))


def module(data: fedsmoo.Dataset) -> nn.Module:
    torch.manual_seed(0)
    return (
        Bag()
        if data.inputs
        else nn.Sequential(nn.Flatten(), nn.Linear(data.x_train[0].numel(), 8), nn.Tanh(), nn.Linear(8, 3))
    )


def made(form: Form, folder: Path) -> fedsmoo.Dataset:
    value = form.make(folder)
    return load(value, options=form.options) if isinstance(value, str) else read_data(value, **form.options)
