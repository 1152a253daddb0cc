"""Published federated data by name, from look-alikes of the publishers' files: LEAF's JSON and TensorFlow's SQLite."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmoo import Config, FedsmooError, simulate
from fedsmoo.data.files.download import fetch_dataset
from fedsmoo.data.forms.published.federated import FEDERATED
from fedsmoo.data.sources import SOURCES, load
from fedsmoo.runs.settings.merge import make_config


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def write_leaf(folder: Path, part: str, users: dict) -> None:
    (folder / part).mkdir(parents=True)
    counts = [len(u["y"]) for u in users.values()]
    content = {"users": [*users], "num_samples": counts, "user_data": users}
    (folder / part / "all_data_0.json").write_text(json.dumps(content))


def pictures(count: int, first: int) -> dict:
    x = np.random.default_rng(first).random((count, 784)).round(3)
    return {"x": x.tolist(), "y": [(first + i) % 62 for i in range(count)]}


def test_femnist_and_shakespeare_lie_in_the_data_folder_and_have_clients(home):
    for part, first in (("train", 0), ("test", 40)):  # as LEAF's script leaves them: femnist/data/train
        write_leaf(home / "femnist" / "data", part, {"f1": pictures(12, first), "f2": pictures(8, first + 12)})
        write_leaf(home / "shakespeare", part, {"HAMLET": {"x": ["to be or"], "y": [" "]}})
    data = load("femnist")
    assert (data.name, list(data.x_train.shape), [len(i) for i in data.natural]) == (
        "femnist",
        [20, 1, 28, 28],
        [12, 8],
    )
    assert (data.classes, data.class_names[10], data.official) == (62, "A", False)
    assert data.x_train[0].flatten().tolist() == pytest.approx(pictures(12, 0)["x"][0])
    assert load("shakespeare").x_train.shape == (1, 8)
    assert Config(dataset="femnist").partition == Config(dataset="stackoverflow-tags").partition == "natural"
    run = {"cohort": 2, "rounds": 1, "local_steps": 1, "batch_size": 4, "progress": False}
    found = simulate("softmax", "femnist", "fedavg", **run)
    assert (found.config.partition, found.history[-1].test_loss > 0) == ("natural", True)
    every = make_config({"dataset": "shakespeare", "model": "char_gru"}, {"positions": True})
    assert every.dataset_options == {"positions": True}
    assert load("femnist", home / "femnist" / "data").fingerprint == data.fingerprint


def number(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(key: int, content: bytes) -> bytes:
    return bytes([key << 3 | 2]) + number(len(content)) + content


def example(tokens: str, title: str, tags: str) -> bytes:
    """A ``tf.train.Example`` as TensorFlow writes it, with a whole number and a float among its features."""
    texts = {"creation_date": "2010-01-01", "tokens": tokens, "title": title, "tags": tags, "type": "question"}
    entries = {n: field(1, field(1, text.encode())) for n, text in texts.items()}
    entries["score"] = field(3, field(1, number(300)))  # packed int64
    entries["weight"] = field(2, bytes([1 << 3 | 5]) + np.float32(0.5).tobytes())
    return field(1, b"".join(field(1, field(1, n.encode()) + field(2, v)) for n, v in entries.items()))


def write_posts(file: Path, posts: dict[tuple[str, str], list[bytes]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(file) as base:
        base.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        base.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for (split, user), rows in posts.items():
            base.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (user, split, len(rows)))
            base.executemany("INSERT INTO examples VALUES (?, ?, ?)", [(split, user, row) for row in rows])
    base.close()


POSTS = {
    ("train", "20"): [example("sort a list", "sort", "python|sorting"), example("a b " * 40, "a", "c++")],
    ("train", "10"): [example("list of list", "python", "python|strange")],
    ("train", "30"): [example("never read", "", "never")],
    ("heldout", "40"): [example("never read", "", "never")],
    ("test", "20"): [example("a new word", "sort", "sorting|python")],
}


def test_tags_of_stack_overflow(home):
    write_posts(home / "stackoverflow-tags" / "stackoverflow.sqlite", POSTS)
    data = load("stackoverflow-tags", options={"users": 2, "words": 4, "tags": 3})
    # Users by name: 10, 20. Words: a 42 times, b 40, list 3, sort 2; of, python once. Tags: python twice, then by name.
    assert [i.tolist() for i in data.natural] == [[0], [1, 2]]
    truth = [[0, 0, 2 / 4, 0], [1 / 4, 0, 1 / 4, 2 / 4], [41 / 81, 40 / 81, 0, 0]]
    assert torch.allclose(data.x_train, torch.tensor(truth))
    assert data.y_train.tolist() == [[1, 0, 0], [1, 0, 1], [0, 1, 0]]  # python, c++, sorting
    assert torch.allclose(data.x_test, torch.tensor([[1 / 4, 0, 0, 1 / 4]]))
    assert data.y_test.tolist() == [[1, 0, 1]]
    assert (data.target, data.classes) == ("labels", 3)
    fewer = load("stackoverflow-tags", options={"samples": 1, "words": 4, "tags": 3})
    assert [len(i) for i in fewer.natural] == [1, 1, 1]


def test_published_frequencies_decide_where_they_lie_beside(home):
    folder = home / "stackoverflow-tags"
    write_posts(folder / "stackoverflow.sqlite", POSTS)
    (folder / "stackoverflow.word_count").write_text(json.dumps({"sort": 9, "zebra": 7, "a": 1}))
    (folder / "stackoverflow.tag_count").write_text(json.dumps({"java": 5, "python": 4}))
    data = load("stackoverflow-tags", options={"users": 2, "words": 2})
    assert torch.allclose(data.x_train, torch.tensor([[0, 0], [2 / 4, 0], [0, 0]]))  # sort, zebra
    assert data.y_train.tolist() == [[0, 1], [0, 1], [0, 0]]  # java, python


def test_what_is_missing_is_said_in_one_line(home, tmp_path):
    folder = home / "stackoverflow-tags"
    for name in FEDERATED:
        assert name in SOURCES
        with pytest.raises(FedsmooError, match=f"data set {name}: .* does not exist; (clone|get) https://") as e:
            load(name)
        assert "\n" not in str(e.value)
        with pytest.raises(FedsmooError, match=f"data set {name} is not downloaded: (clone|get) https://"):
            fetch_dataset(name)
    folder.mkdir(parents=True)
    (folder / "stackoverflow_train.h5").write_bytes(b"")
    packed = folder / "stackoverflow.sqlite.lzma"
    tags = "stackoverflow-tags"
    wrong: list[tuple[dict, str]] = [
        ({}, r"stackoverflow_train.h5 cannot be read as it is: take stackoverflow.sqlite.lzma of the same publisher"),
        ({"users": 0}, "users is 0, but must be a whole number from 1"),
        ({"wrods": 5}, "unknown option of data set stackoverflow-tags 'wrods': did you mean 'words'"),
    ]
    for options, message in wrong:
        with pytest.raises(FedsmooError, match=message):
            load(tags, options=options)
    packed.write_bytes(b"")
    with pytest.raises(FedsmooError, match=r"sqlite.lzma cannot be read as it is: unpack it first"):
        load(tags, packed)
    with pytest.raises(FedsmooError, match=r"there is no stackoverflow.sqlite in"):
        load(tags, tmp_path)
    (folder / "stackoverflow.sqlite").write_bytes(b"no database, but long enough to be looked at")
    with pytest.raises(FedsmooError, match="is not the published SQLite file: file is not a database"):
        load(tags)
    cut = example("a", "b", "c")[:-3]
    for k, (rows, message) in enumerate(
        [([cut], "a post cannot be read"), ([b""], "a post cannot be read"), ([], "no")]
    ):
        write_posts(tmp_path / f"{k}.sqlite", {("train", "1"): rows})
        with pytest.raises(FedsmooError, match=message):
            load(tags, tmp_path / f"{k}.sqlite")
