"""Which columns are samples, labels and clients, in every form that has columns; and what is made of them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from fedsmoo import FedsmooError, read_data
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.data.sources import load

from .given import CUT, FRAME, IMAGES, TESTED, WHO, Pairs, X, Y, huggingface, table


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))


def test_columns_by_rule_and_by_name():
    from sklearn.datasets import load_iris

    iris = load_iris()  # a dict of many things
    assert torch.equal(read_data(iris).x_train, torch.from_numpy(iris.data))
    named = read_data({"a": X[:, 0], "b": X[:, 1], "out": Y}, y="out", x="b,a")
    assert torch.equal(named.x_train, torch.from_numpy(X[:, [1, 0]]))
    several = read_data(FRAME, x=["a"], y=["b", "c"])
    assert (several.target, several.classes) == ("numbers", 0)
    assert torch.equal(several.y_train, torch.from_numpy(X[:, 1:3]))
    labels = read_data(FRAME.assign(p=Y > 0, q=Y > 1), x="a", y="p,q", target="labels")
    assert labels.y_train.tolist() == [[float(k > 0), float(k > 1)] for k in Y]


class Fields(Pairs):
    def __getitem__(self, i):
        return {**{name: float(self.x[name].iloc[i]) for name in self.x.columns}, "label": int(self.y[i])}


def in_order(columns: str, rows: slice) -> pd.DataFrame:
    return pd.DataFrame(X, columns=list("abcde"))[rows][list(columns)]


@pytest.mark.parametrize("form", ["frame", "arrays", "dict", "items", "huggingface", "clients"])
def test_a_column_is_known_by_its_name_in_every_part(form, tmp_path):
    """The test part, or another client, has the columns of the first part in another order, and one more."""
    train, other = slice(0, CUT), slice(CUT, 60)
    a, b = in_order("abcde", train), in_order("edcba", other).assign(more=7.0)
    frames = a.assign(label=Y[train]), b.assign(label=Y[other])
    value: Any = frames
    if form == "arrays":
        value = (a, Y[train], b, Y[other])
    elif form == "dict":
        value = tuple({name: frame[name].to_numpy() for name in frame.columns} for frame in frames)
    elif form == "items":
        value = (Fields(a, Y[train]), Fields(b, Y[other]))
    elif form == "huggingface":
        value = tuple(pytest.importorskip("datasets").Dataset.from_pandas(frame) for frame in frames)
        value = tuple(part.remove_columns([n for n in part.column_names if n.startswith("__")]) for part in value)
    elif form == "clients":
        value = list(frames)
    data = read_data(value)
    found = data.x_train if form == "clients" else torch.cat([data.x_train, data.x_test])
    assert torch.equal(found.float(), torch.from_numpy(X))
    if form != "clients":
        with pytest.raises(FedsmooError, match=r"unknown column of data: .*'c'"):
            read_data((a, Y[train], b.drop(columns="c"), Y[other]))


@pytest.mark.parametrize("form", ["clients", "a test part", "test parts"])
def test_tables_behind_an_array_have_one_order(form):
    """They were compared with the first part alone, which has no columns: each kept its own order."""
    rows = [slice(k, k + 15) for k in range(0, 60, 15)]
    parts: list[Any] = [in_order(names, r) for names, r in zip(("abcde", "abcde", "edcba", "edcba"), rows, strict=True)]
    one, two, three, four = [(x, Y[r]) for x, r in zip([X[rows[0]], *parts[1:]], rows, strict=True)]
    value: Any = {
        "clients": [one, two, three, four],
        "a test part": ([one, two, three], four),
        "test parts": ([one, two], [three, four]),
    }[form]
    data = read_data(value)
    assert torch.equal(data.x_train.float(), torch.from_numpy(X[: len(data.x_train)]))
    if form != "clients":
        assert torch.equal(data.x_test.float(), torch.from_numpy(X[len(data.x_train) :]))


def test_an_array_among_tables_of_another_order_is_refused():
    """Nobody says which column is which in it."""
    tables = [(in_order(names, slice(0, 20)), Y[:20]) for names in ("abcde", "edcba")]
    with pytest.raises(FedsmooError, match="data: test part: client 0: x names a column, but two arrays have none"):
        read_data(([tables[0], tables[0]], [(X[:20], Y[:20]), tables[1]]))


def test_numbers_of_rows_in_a_file_are_said(tmp_path):
    in_order("abcde", slice(0, CUT)).assign(label=Y[:CUT]).to_csv(tmp_path / "mine.csv")
    with pytest.warns(FedsmooWarning, match=r"first column of mine.csv has no name and holds the numbers of the rows"):
        assert load(f"table:{tmp_path / 'mine.csv'}").x_train.shape == (CUT, 6)


@pytest.mark.parametrize("form", [pd.DataFrame, dict], ids=["table", "arrays"])
def test_a_feature_that_is_taken_for_the_whole_sample_is_said(form):
    columns = {"x": X[:, 0], "z": X[:, 1], "label": Y, "client": np.arange(len(Y)) % 3}
    said = "data: samples are the column 'x' alone, without 'z': name all columns to learn from, x="
    with pytest.warns(FedsmooWarning, match=said):
        assert read_data(form(columns)).x_train.shape == (len(Y), 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_data(form(columns), x=["x", "z"]).x_train.shape == (len(Y), 2)
        assert read_data(form({n: v for n, v in columns.items() if n != "z"})).x_train.shape == (len(Y), 1)


def test_text_to_be_learnt_is_classes_by_name():
    names = np.array(["cat", "ant", "bee"])
    data = read_data(FRAME.assign(kind=names[Y]), y="kind", test=0.25)
    assert data.class_names == ("ant", "bee", "cat")
    both = sorted(zip(torch.cat([data.x_train, data.x_test])[:, 0].tolist(),
                      torch.cat([data.y_train, data.y_test]).tolist(), strict=True))  # fmt: skip
    assert both == sorted(zip(X[:, 0].tolist(), np.array([2, 0, 1])[Y].tolist(), strict=True))
    assert len(data.x_test) == 15


def test_a_share_to_test_on_is_the_same_every_time_and_of_each_client():
    first, again = (read_data(FRAME.assign(client=[*WHO, *TESTED]), y="kind", test=0.3) for _ in range(2))
    assert first.fingerprint == again.fingerprint
    whole = np.bincount([*WHO, *TESTED])
    tested = [round(0.3 * n) for n in whole]
    assert [len(i) for i in first.natural_test] == tested
    assert [len(i) for i in first.natural] == [n - k for n, k in zip(whole, tested, strict=True)]


def test_grey_images_among_colour_images_become_colour_images():

    grey = [Image.fromarray(i[..., 0] if k > 30 else i) for k, i in enumerate(IMAGES)]
    for images in (grey, grey[::-1]):
        data = read_data(Pairs(images, Y))
        assert data.x_train.shape == (60, 6, 6, 3)
        pixels = data.x_train if images is grey else data.x_train.flip(0)
        assert torch.equal(pixels[40], torch.from_numpy(IMAGES[40][..., :1]).expand(6, 6, 3))
        assert torch.equal(pixels[3], torch.from_numpy(IMAGES[3]))


def test_huggingface_keeps_names_takes_any_format_and_pads_labels():
    from datasets import Dataset as Table

    named = huggingface(X, Y % 2)
    assert read_data(named).class_names == ("ant", "bee", "cat")  # though nobody is a cat
    for kind in ("torch", "numpy", "pandas"):
        assert read_data(named.with_format(kind)).fingerprint == read_data((X, Y % 2)).fingerprint
    scaled = named.with_transform(lambda rows: {"features": [2 * np.array(x) for x in rows["features"]],
                                                "label": rows["label"]})  # fmt: skip
    assert torch.equal(read_data(scaled).x_train, 2 * torch.from_numpy(np.array(named["features"])))
    tagged = Table.from_dict({"input_ids": [[5, 6, 7], [8]], "labels": [[0, 1, 1], [1]]})
    with pytest.warns(FedsmooWarning, match="padded to 3, the longest, with the pad id 9"):
        data = read_data(tagged, pad=9)
    assert data.x_train.tolist() == [[5, 6, 7], [8, 9, 9]]
    assert data.y_train.tolist() == [[0, 1, 1], [1, -100, -100]]
    rng = np.random.default_rng()
    noisy = named.with_transform(lambda rows: {**rows, "features": [x + rng.normal(size=5) for x in rows["features"]]})
    with pytest.raises(FedsmooError, match="is another one each time it is read"):
        read_data(noisy)


def test_several_labels_beside_sequences_of_tokens_are_not_labels_of_positions():
    tagged = table(input_ids=[[5, 6, 7, 8], [9, 2], [3]], labels=[[0, 1], [1, 1], [0, 0]])
    for options, kind in (({"target": "labels"}, "labels"), ({"target": "numbers"}, "numbers")):
        with pytest.warns(FedsmooWarning, match="padded to 4"):
            data = read_data(tagged, **options)
        assert (data.target, data.y_train.tolist()) == (kind, [[0, 1], [1, 1], [0, 0]])


def test_columns_of_targets_are_known_by_their_names_and_another_order_of_rows_is_said():
    x, y = pd.DataFrame({"a": [1.0, 2.0, 3.0]}), pd.DataFrame({"p": [0.0, 1.0, 1.0], "q": [1.0, 0.0, 1.0]})
    data = read_data({"x_train": x, "y_train": y, "x_test": x, "y_test": y[["q", "p"]]}, target="labels")
    assert torch.equal(data.y_test, data.y_train)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_data((x, pd.Series([0, 1, 1])))
        read_data((x, pd.Series([0, 1, 1], index=[7, 8, 9])))  # rows of other names
    for value in ((x, pd.Series([0, 1, 1], index=[2, 1, 0])), (x, y.p > 0, x, (y.p > 0)[::-1])):
        with pytest.warns(
            FedsmooWarning, match=r"the same names \(index\) in another order, and go together by their place"
        ):
            read_data(value)


@pytest.mark.parametrize("declared", [True, False])
def test_bytes_in_columns_of_huggingface_are_images(declared):
    """Its package has them as int64, which are tokens."""
    from datasets import Array3D, Features, Value

    images = np.random.default_rng(2).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
    features = Features({"x": Array3D((4, 5, 3), "uint8"), "label": Value("int64")}) if declared else None
    columns = {"x": images if declared else list(images), "label": Y[:6]}
    found = read_data(type(table(a=[1])).from_dict(columns, features=features))
    assert found.fingerprint == read_data((images, Y[:6])).fingerprint
    tokens = table(x=[np.array([1, 2], np.uint8)] * 6, label=Y[:6])
    assert read_data(tokens).x_train.dtype == torch.int64


def test_arrays_may_have_the_other_order_of_bytes():
    swapped = read_data((X.astype(">f4"), Y.astype(">i2")))
    assert swapped.fingerprint == read_data((X.astype("f4"), Y)).fingerprint


RARE = """
from datasets import ClassLabel, Dataset, Features, Value


def rare():
    features = Features({"x": Value("float32"), "label": ClassLabel(names=["x", "y", "z"])})
    parts = {"train": [0, 1, 0], "test": [0, 1, 2]}
    return {n: Dataset.from_dict({"x": [1.0, 2.0, 3.0], "label": y}, features=features) for n, y in parts.items()}
"""


def test_a_rare_class_of_named_ones_may_be_in_the_test_part_alone(tmp_path: Path) -> None:
    """As it may where the same data are given themselves; made by a function in a file they were refused."""
    (tmp_path / "rare.py").write_text(RARE)
    found = load(f"{tmp_path / 'rare.py'}:rare")
    assert (found.classes, found.y_train.tolist(), found.y_test.tolist()) == (3, [0, 1, 0], [0, 1, 2])


def test_a_number_beside_samples_and_labels_is_no_column() -> None:
    """As a file of NumPy has it: ``len`` of it was a traceback."""
    found = read_data({"x": X, "y": Y, "scale": np.array(2.0)}, test=0.5)
    assert len(found.x_train) + len(found.x_test) == len(X)
