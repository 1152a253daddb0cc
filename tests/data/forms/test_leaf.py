"""LEAF's files: characters by LEAF's numbers, words by frequency, users with their own test samples, kept once read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsmoo import Config, FedsmooError, simulate
from fedsmoo.data.sources import load
from fedsmoo.runs.origin.contents import hash_user_files


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))


def write(folder: Path, part: str, users: dict, name: str = "all_data.json") -> str:
    (folder / part).mkdir(parents=True, exist_ok=True)
    counts = [len(u["y"]) for u in users.values()]
    (folder / part / name).write_text(json.dumps({"users": [*users], "num_samples": counts, "user_data": users}))
    return f"leaf:{folder}"


def test_shakespeare_by_leafs_characters(tmp_path):
    write(
        tmp_path / "play", "train", {"B": {"x": ["ab}\n", "b}\nz"], "y": ["z", "A"]}, "A": {"x": ["Az 9"], "y": ["!"]}}
    )
    name = write(tmp_path / "play", "test", {"B": {"x": ["aaaa"], "y": ["b"]}, "C": {"x": ["bbbb"], "y": ["a"]}})
    data = load(name)
    # newline 0, space 1, ! 2, ..., digits from 11, : ; > ? then capitals from 25, [ ], small letters from 53, } 79
    assert data.x_train.tolist() == [[25, 78, 1, 20], [53, 54, 79, 0], [54, 79, 0, 78]]
    assert data.y_train.tolist() == [2, 78, 25]
    assert (data.classes, data.class_names[79], len(data.class_names)) == (80, "}", 80)
    assert [i.tolist() for i in data.natural] == [[0], [1, 2]]  # A, B
    assert [i.tolist() for i in data.natural_test] == [[], [0]]
    assert data.y_test.tolist() == [54, 53]  # of B, and of C who does not train
    every = load(name, options={"positions": True})
    assert every.y_train.tolist() == [[78, 1, 20, 2], [54, 79, 0, 78], [79, 0, 78, 25]]


def tweet(text: str) -> list[str]:
    return ["1", "Mon", "NO_QUERY", "ann", text, "x"]


def test_sent140_by_frequency(tmp_path):
    train = {"ann": {"x": [tweet("Good good day!"), tweet("a DAY, a night")], "y": [1, 0]}}
    name = write(tmp_path / "data" / "tw", "train", train)
    write(tmp_path / "data" / "tw", "test", {"ann": {"x": [tweet("a good friend")], "y": [1]}})
    # a, day, good: twice each and so by name; then ! , night: once
    data = load(name, options={"length": 5, "words": 4})
    assert data.x_train.tolist() == [[4, 4, 3, 5, 0], [2, 3, 1, 2, 1]]
    assert data.x_test.tolist() == [[2, 4, 1, 0, 0]]
    assert data.y_train.tolist() == [1, 0]
    assert load(name).x_train.shape == (2, 25)
    for wrong, said in (
        ({"length": 0}, "length is 0, but must be a whole number from 1"),
        ({"wrods": 3}, "mean 'words'"),
    ):
        with pytest.raises(FedsmooError, match=said):
            load(name, options=wrong)


def digits(seed: int, users: int, count: int) -> dict:
    rng = np.random.default_rng(seed)
    return {f"f{u}": {"x": rng.random((count, 784)).round(3).tolist(), "y": rng.integers(0, 62, count).tolist()}
            for u in range(users)}  # fmt: skip


def test_femnist_is_kept_once_read_and_another_content_is_another_run(tmp_path, monkeypatch):
    folder = tmp_path / "femnist"
    users = digits(0, 3, 4)
    write(folder / "data", "train", users)
    write(folder / "data", "test", digits(1, 3, 2))
    first = load(f"leaf:{folder}")
    assert first.x_train.shape == (12, 1, 28, 28)
    assert torch.equal(first.x_train[5], torch.tensor(users["f1"]["x"][1]).view(1, 28, 28))
    assert (first.classes, first.class_names[10], first.name) == (62, "A", "leaf:femnist")
    monkeypatch.setattr("fedsmoo.data.forms.leaf.parse_json", None)  # the second time no JSON is read
    again = load(f"leaf:{folder}")
    assert again.fingerprint == first.fingerprint
    assert [i.tolist() for i in again.natural_test] == [[0, 1], [2, 3], [4, 5]]
    monkeypatch.undo()
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))
    config = Config(dataset=f"leaf:{folder}")
    assert config.partition == "natural"
    held = hash_user_files(config)
    write(folder / "data", "test", digits(2, 3, 2))
    assert hash_user_files(config)["data_content"] != held["data_content"]
    assert load(f"leaf:{folder}").fingerprint.test != first.fingerprint.test
    result = simulate("softmax", f"leaf:{folder}", "fedavg", cohort=2, rounds=1, local_steps=1)
    assert len(result.simulation.indices) == 3
