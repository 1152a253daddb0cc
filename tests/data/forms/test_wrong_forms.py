"""Data that is wrong in one of its forms: a line says what, where, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from fedsmoo import FedsmooError

from .given import FRAME, Form, Named, Pairs, X, Y, made, table


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Triples(Pairs):
    def __getitem__(self, i):
        return self.x[i], int(self.y[i]), i


class Broken(Pairs):
    def __getitem__(self, i):
        return self.x[i], {"label": 3}[f"{i}"]


class Sizes(Pairs):
    def __getitem__(self, i):
        return np.zeros((6, 6 + i % 2, 3), np.uint8), 0


class Words(Pairs):
    def __getitem__(self, i):
        return "a text", 0


class Late(Named):
    def __getitem__(self, i):
        return super().__getitem__(i) if i < 20 else {"label": 0}


class Mixed(Pairs):
    """Lists of whole numbers, then of others; grey arrays, then coloured ones."""

    def __getitem__(self, i):
        if self.x.dtype == np.uint8:
            return np.zeros((4, 4, 1 if i < 3 else 3), np.uint8), 0
        return ([1, 2, 3] if i < 3 else [1.5, 2.7]), 0


def leaf_of(content: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / "leaf" / "train").mkdir(parents=True)
        (folder / "leaf" / "train" / "a.json").write_text(content)
        return f"leaf:{folder / 'leaf'}"

    return make


def csv_of(content: str | bytes) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / "a.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
        return f"table:{folder / 'a.csv'}"

    return make


def unassigned() -> Any:
    from flwr_datasets.partitioner import IidPartitioner

    return IidPartitioner(3)


TWO = pd.DataFrame({"p": [0.0, 1.0, 1.0], "q": [1.0, 0.0, 1.0]})
LEAF = '{"users": ["u"], "num_samples": [%s], "user_data": {"u": {"x": %s, "y": %s}}}'
# What is given, options, and what is said.
WRONG: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "iterable": (lambda _: Stream(), {}, "data: an iterable data set has no numbered items: give one with __len__"),
    "loader": (lambda _: DataLoader(Pairs(X, Y)), {}, "a DataLoader makes batches of its own: give its data set"),
    "triples": (lambda _: Triples(X, Y), {}, "item 0 is a tuple of 3, "),
    "three tensors": (
        lambda _: TensorDataset(*[torch.zeros(3, 2)] * 3),
        {},
        "of 3 tensors, but must be of two, (x, y)",
    ),
    "an error inside": (lambda _: Broken(X, Y), {}, "in __getitem__: KeyError"),
    "sizes": (lambda _: Sizes(X, Y), {}, "samples have different shapes, [6, 6, 3] and [6, 7, 3]: resize them first"),
    "words": (lambda _: Words(X, Y), {}, "a value is text, 'a text', but must be numbers or an image"),
    "floats as an image": (
        lambda _: Pairs([Image.fromarray(np.zeros((4, 4), np.float32))] * 3, Y),
        {},
        "data: item 0: an image has pixels of more than 8 bits (mode 'F')",
    ),
    "a field goes": (lambda _: Late(X, Y), {}, "item 20 has no 'features', which item 0 has"),
    "no names": (lambda _: Pairs(X, Y), {"y": "label"}, "y names a field, but its items have no names: leave it out"),
    "empty": (lambda _: Pairs(X[:0], Y[:0]), {}, "data: it is empty; at least one sample is needed"),
    "NaN": (lambda _: Pairs(np.where(X > 2, np.nan, X), Y), {}, "holds NaN or infinite values; remove or repair it"),
    "an option": (lambda _: Pairs(X, Y), {"z": 1}, "unknown option of data 'z'; known: "),
    "a test part by its name": (lambda _: {"x": X, "y": Y, "x_test": X, "y_test": Y}, {}, "'x_test' would be left out"),
    "a share": (lambda _: (X, Y), {"test": 2}, "test is 2, but must be a share between 0 and 1, such as 0.2"),
    "two test parts": (lambda _: ((X, Y), (X, Y)), {"test": 0.2}, "but there is a test part: leave one of them out"),
    "a pad": (lambda _: (X, Y), {"pad": -1}, "pad is -1, but must be the tokenizer's pad id, a whole number from 0"),
    "two with labels of their own": (lambda _: (Pairs(X, Y), Y, Pairs(X, Y), Y), {}, "data has 4 parts, but must be "),
    "lengths": (lambda _: (X, Y[:5]), {}, "data: 60 samples but 5 labels; each sample needs one"),
    "text of a table": (
        lambda _: table(text=["a", "b"], label=[0, 1]),
        {},
        "column 'text' holds text: tokenise it first",
    ),
    "text in a dict of lists": (
        lambda _: {"a": [1.0, 2.0], "town": ["A", "B"], "y": [0, 1]},
        {},
        "column 'town' holds text: leave it out; or name the columns to learn from, x=[...]",
    ),
    "text in a dict of arrays": (
        lambda _: {"a": X[:, 0], "town": np.array(["A"] * len(X)), "y": Y},
        {},
        "column 'town' holds text: leave it out",
    ),
    "no label": (
        lambda _: table(x=[1.0], who=[0]),
        {},
        "which column is to be learnt? Say it as y='NAME': there are x, ",
    ),
    "no such column": (lambda _: table(x=[1.0], label=[0]), {"y": "lable"}, "'lable': did you mean 'label'? Known: "),
    "which samples": (
        lambda _: table(a=[[1.0]], b=[[1.0]], y=[0]),
        {},
        "which column holds the samples? Say it as x='",
    ),
    "inputs differ": (lambda _: table(input_ids=[[1, 2]], attention_mask=[[1]], y=[0]), {}, "have different shapes"),
    "streamed": (lambda _: table(x=[1.0], y=[0]).to_iterable_dataset(), {}, "load it without streaming=True"),
    "labels of a hidden test": (lambda _: (table(x=X, y=Y), table(x=X, y=Y - 1)), {}, "labels run from -1 to 1"),
    "a category": (
        lambda _: FRAME.assign(town="A"),
        {"y": "kind"},
        "column 'town' holds text: make numbers of it, pandas",
    ),
    "dates": (
        lambda _: FRAME.assign(day=pd.Timestamp(0)),
        {"y": "kind"},
        "column 'day' holds neither numbers nor images",
    ),
    "missing": (
        lambda _: FRAME.assign(a=FRAME.a.where(FRAME.index > 0)),
        {"y": "kind"},
        "column 'a' has 1 missing value, the first of sample 0: fill them",
    ),
    "a word among numbers": (
        csv_of("a,b,y\n1,2,0\n3,n/k,1\n4,5,0\n"),
        {"y": "y"},
        "column 'b' holds text: 1 of 3 values are no numbers, the first is 'n/k' of sample 1: repair them; or name",
    ),
    "words among missing values": (  # of which "1 of 3 are no numbers" is no help
        lambda _: FRAME.assign(a=["n/k", *[None] * (len(FRAME) - 1)]),
        {"y": "kind"},
        "column 'a' holds text: make numbers of it, pandas.get_dummies(",
    ),
    "two columns of a csv": (csv_of("a,y,a\n1,0,2\n"), {"y": "y"}, "a.csv: two columns are called 'a': rename one"),
    "two columns called NA": (csv_of("NA,y,NA\n1,0,2\n"), {"y": "y"}, "a.csv: two columns are called 'NA': rename one"),
    "another sign": (csv_of("a;b;y\n1,5;2;0\n"), {"y": "y"}, "a.csv: between columns is ';', not a comma: save it"),
    "a tab": (csv_of("a\tb\ty\n1\t2\t0\n"), {"y": "y"}, "a.csv: between columns is a tab, not a comma"),
    "another encoding": (csv_of("ä,y\n1,0\n".encode("latin-1")), {"y": "y"}, "a.csv is no text in UTF-8: save it in"),
    "a series": (lambda _: FRAME.a, {}, "a Series is one column: give a DataFrame with the column to be learnt"),
    "twice": (lambda _: pd.concat([FRAME, FRAME.a], axis=1), {"y": "kind"}, "two columns are called 'a': rename one"),
    "both": (lambda _: FRAME, {"x": "a,kind", "y": "kind"}, "column 'kind' is both in x and what is learnt"),
    "a client of clients": (lambda _: [[(X, Y), (X, Y)]], {}, "data: client 0 is [(array("),
    "other shapes": (
        lambda _: [(X, Y), (X[:, :3], Y)],
        {},
        "client 1: values have the shape [3], those of data: client",
    ),
    "other targets": (
        lambda _: ((X[:3], TWO), (X[:3], TWO[["q", "p"]])),
        {"target": "labels"},
        "data: test part: y has the columns ['q', 'p'], but those of data: train part are ['p', 'q']",
    ),
    "other inputs": (lambda _: [(X, Y), (X.astype(int), Y)], {}, "client 1: torch.int64, but data: client 0 has torch"),
    "tests of others": (lambda _: ([(X, Y)], [(X, Y), (X, Y)]), {}, "test parts of 2 clients, but there are 1 clients"),
    "fewer clients than samples": (
        lambda _: {"x": X, "y": Y, "client": Y[:-1]},
        {},
        "data: 'client' has 59 rows, but 'y' has 60",
    ),
    "a sample without a client": (
        lambda _: table(a=[1.0, 2.0, 3.0], y=[0, 1, 0], client=["a", None, "b"]),
        {},
        "1 of 3 samples have no client, the first is sample 1: name one",
    ),
    "a client that is no number": (
        lambda _: {"x": X, "y": Y, "client": np.where(Y == 1, np.nan, Y)},
        {},
        "samples have no client, the first is sample ",
    ),
    "two clients for a sample": (
        lambda _: {"x": X, "y": Y, "client": np.zeros((60, 2))},
        {},
        "has the shape [60, 2], but each of the 60 samples needs one client",
    ),
    "a mask as a subset": (
        lambda _: Subset(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), (Y == 1).tolist()),
        {},
        "must number items: of a mask use np.flatnonzero(mask)",
    ),
    "a subset of other items": (
        lambda _: Subset(Pairs(X, Y), [0, 60]),
        {},
        "data: a Subset has the item 60, but its data set has items 0 to 59",
    ),
    "labels of words, not of tokens": (
        lambda _: table(input_ids=[[1, 2, 3], [4, 5]], labels=[[0, 1], [1, 1]]),
        {},
        "a sample of 3 tokens has 2 labels: give each token one (-100 where there is none)",
    ),
    "a mask of another length": (
        lambda _: table(input_ids=[[1, 2, 3], [4, 5]], attention_mask=[[1, 1, 1], [1]], y=[0, 1]),
        {},
        "inputs 'input_ids' and 'attention_mask' of a sample differ in length",
    ),
    "tokens and floats": (lambda _: Mixed(X[:6], Y), {}, "is among lists of whole numbers: make them alike"),
    "grey and coloured arrays": (
        lambda _: Mixed(X[:6].astype(np.uint8), Y),
        {},
        "some images are grey, others coloured: give all of them 3 channels",
    ),
    "text labels of items": (
        lambda _: table(x=[[1.0], [2.0]], y=["a", "b"]),
        {},
        "labels are text, 'a': number the classes in the data set itself",
    ),
    "text labels in four arrays": (
        lambda _: (X, np.array(list("ab") * 30), X, np.array(list("ba") * 30)),
        {},
        "y_train: cannot be read as an array of numbers, it holds text: number classes by np.unique(",
    ),
    "objects": (lambda _: (X, np.array([0, None] * 30)), {}, "it is one of objects, such as None"),
    "one number": (lambda _: (X, 3), {}, "but both must have a row for each sample"),
    "no data yet": (lambda _: unassigned(), {}, "the partitioner has no data yet: set partitioner.dataset first"),
    "no LEAF": (
        lambda folder: f"leaf:{folder}",
        {},
        "no folder train/ there; LEAF's have train/*.json and test/*.json",
    ),
    "broken JSON": (leaf_of('{"users": ['), {}, "a.json cannot be read: Expecting value"),
    "missing keys": (leaf_of('{"users": []}'), {}, "not a file of LEAF's: it needs users, num_samples and user_data"),
    "other lengths": (
        leaf_of(LEAF % (2, "[[1]]", "[0]")),
        {},
        "user 'u' has 1 samples and 1 labels, but num_samples says",
    ),
    "no glyph": (leaf_of(LEAF % (1, '["caf\u00e9"]', '["a"]')), {}, "the character 'é' is not among LEAF's 80"),
    "no kind": (
        leaf_of(LEAF % (1, '["1.jpg"]', "[1]")),
        {},
        "a sample is '1.jpg' with the label 1, but must be a list",
    ),
    "ragged": (
        leaf_of(LEAF % (2, "[[1], [1, 2]]", "[0, 1]")),
        {},
        "user 'u': samples cannot be read: setting an array",
    ),
    "no table": (lambda folder: f"table:{folder / 'a.csv'}", {"y": "a"}, "a.csv: no such file"),
    "no csv": (lambda folder: f"table:{folder / 'a.txt'}", {"y": "a"}, "must be a .csv or .parquet file, or a folder"),
    "a field without a name": (
        csv_of("a,b,y\n1,2,0,5\n3,4,1,7\n"),
        {"y": "y"},
        "a.csv: rows have more fields than the first line has names: name every column",
    ),
    "clients of one number": (
        csv_of("a,client,y\n1,01,0\n3,1,1\n4,2,0\n"),
        {},
        "column 'client' of a.csv: clients 01 and 1 are the same number: write each client in one way",
    ),
    "clients of one float": (  # a missing one turns the column into floats, which hold whole numbers up to 2^53
        csv_of("a,who,y\n1,9007199254740993,0\n3,9007199254740992,1\n4,,0\n"),
        {"client": "who"},
        "clients 9007199254740992 and 9007199254740993 are the same number",
    ),
    "a csv of names alone": (csv_of("a,b,y\n"), {"y": "y"}, "a.csv: it is empty; at least one sample is needed"),
    "a broken csv": (csv_of('a,b\n"1,2\n'), {"y": "a"}, "a.csv cannot be read: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_one_clear_line(name, tmp_path):
    make, options, said = WRONG[name]
    with pytest.raises(FedsmooError) as caught:
        made(Form(make, options), tmp_path)
    line = str(caught.value)
    assert said in line
    assert "\n" not in line
