"""What a data set holds, as hashes."""

from __future__ import annotations

import dataclasses
import hashlib
import struct

import numpy as np
import pytest
import torch

from fedsmoo.core import FedsmooError
from fedsmoo.data import sources
from fedsmoo.data.catalog import OFFICIAL
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.fingerprint import Fingerprint
from fedsmoo.data.sources import load

from . import official


def small(seed: int = 0, name: str = "cifar10") -> Dataset:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (12, 4, 4, 3), generator=g, dtype=torch.uint8)
    return Dataset(name, x[:8], torch.arange(8) % 3, x[8:], torch.arange(4) % 3, classes=3)


def literal(x: np.ndarray, y: list[int]) -> str:
    """The hash of a part, said again from its description."""
    kind = b"uint8 (4, 4, 3)|int64 ()|"
    each = [hashlib.sha256(kind + x[k].tobytes() + struct.pack("<q", y[k])).digest() for k in range(len(x))]
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()


def test_a_fingerprint_is_what_it_says() -> None:
    data = small()
    found = data.fingerprint
    assert found.train == literal(data.x_train.numpy(), data.y_train.tolist())
    assert found.test == literal(data.x_test.numpy(), data.y_test.tolist())
    assert found.content == hashlib.sha256(f"{found.train} {found.test}".encode()).hexdigest()


def test_the_order_of_the_samples_is_apart() -> None:
    data, order = small(), torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])
    turned = dataclasses.replace(data, x_train=data.x_train[order], y_train=data.y_train[order])
    assert turned.fingerprint.content == data.fingerprint.content
    assert turned.fingerprint.order != data.fingerprint.order


@pytest.mark.parametrize("what", ["pixel", "label", "swapped labels", "twice", "parts", "shape", "type"])
def test_any_other_content_is_another(what: str) -> None:
    data = small()
    x, y = data.x_train.clone(), data.y_train.clone()
    other = {
        "pixel": lambda: {"x_train": x.index_put((torch.tensor([5]),), x[5] ^ 1)},
        "label": lambda: {"y_train": y.index_fill(0, torch.tensor([0]), 2)},
        "swapped labels": lambda: {"y_train": y[torch.tensor([1, 0, 2, 3, 4, 5, 6, 7])]},
        "twice": lambda: {"x_train": torch.cat([x, x[:1]]), "y_train": torch.cat([y, y[:1]])},
        "parts": lambda: {"x_train": data.x_test, "y_train": data.y_test, "x_test": x, "y_test": y},
        "shape": lambda: {"x_train": x.reshape(8, 2, 8, 3)},
        "type": lambda: {"x_train": x.view(torch.int8)},
    }[what]()
    assert dataclasses.replace(data, **other).fingerprint.content != data.fingerprint.content


def test_duplicates_count_as_often_as_they_are_there() -> None:
    data = small()

    def drawn(*chosen: int) -> str:
        rows = torch.tensor(chosen)
        return dataclasses.replace(data, x_train=data.x_train[rows], y_train=data.y_train[rows]).fingerprint.train

    assert len({drawn(0, 1), drawn(0, 0, 1), drawn(0, 1, 1), drawn(0, 0, 1, 1), drawn(0, 0, 0, 1)}) == 5


def test_it_is_taken_once_and_moves_along(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small()
    before = data.fingerprint
    monkeypatch.setattr(Fingerprint, "of", lambda *parts: pytest.fail("taken again"))
    assert data.to("cpu").fingerprint is data.fingerprint is before


def test_digits_are_official_and_noise_under_their_name_is_not() -> None:
    data = load("digits")
    assert data.fingerprint.content == OFFICIAL["digits"]
    assert data.official
    noise = dataclasses.replace(data, x_train=torch.rand_like(data.x_train))
    assert not noise.official
    assert not dataclasses.replace(data, name="cifar10").official


@pytest.mark.parametrize("form", ["files", "archive", "npz"])
def test_files_with_the_publishers_checksums_are_official(form: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, files, archive, arrays = official.cifar()
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(sources.SPECS, "cifar10", spec)
    place = tmp_path / "data"
    place.mkdir()
    if form == "files":
        for name, content in files.items():
            (place / name).write_bytes(content)
    elif form == "archive":
        (place / spec.remotes[0].file).write_bytes(archive)
    else:
        np.savez(place / "cifar10.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True)))
    for _ in range(2):  # decoded, and from the cache
        assert load("cifar10", place).official is (form != "npz")


def test_the_same_content_in_any_form_has_one_fingerprint(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, files, _, arrays = official.cifar()
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path / "cache"))
    monkeypatch.setitem(sources.SPECS, "cifar10", spec)
    (tmp_path / "files").mkdir()
    for name, content in files.items():
        (tmp_path / "files" / name).write_bytes(content)
    parts = dict(zip(("x_train", "y_train", "x_test", "y_test"), arrays, strict=True))
    parts["x_train"] = parts["x_train"].transpose(0, 3, 1, 2)  # channels first
    parts["y_train"] = np.asarray(parts["y_train"], np.uint8)
    np.savez(tmp_path / "cifar10.npz", **parts)
    one, two = load("cifar10", tmp_path / "files"), load("cifar10", tmp_path / "cifar10.npz")
    assert one.fingerprint == two.fingerprint
    monkeypatch.setitem(OFFICIAL, "cifar10", one.fingerprint.content)
    assert load("cifar10", tmp_path / "cifar10.npz").official  # once it is known what they hold


@pytest.mark.parametrize(
    "value", [None, "x", {}, {"train": "0" * 63, "test": "0" * 64, "order": "0" * 64}, {"train": 1}]
)
def test_a_damaged_fingerprint_is_refused(value: object) -> None:
    with pytest.raises(FedsmooError, match=r"here is damaged: the fingerprint of its data has no train of 64"):
        Fingerprint.read(value, "here")
