"""Split files: they read back, refuse other data and any change; splits of other simulators; figures."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.check import from_arrays
from fedsmoo.data.division.partition import IID, Dirichlet, Pathological, to_rule
from fedsmoo.data.division.splitfile import import_split, load_split, read_split, save_split
from fedsmoo.pages.figures.partition import class_totals, counts, describe, draw, heat_map, summary


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, 6, 5, 3), dtype=np.uint8)
    x[0, 0, 0], x[0, 0, 1] = 0, 255
    y = np.arange(60) % 4
    return from_arrays(x, y, x[:8], y[:8], name="little")


@pytest.fixture
def split(data):
    return Dirichlet(0.3).split(data.y_train.numpy(), 4, 7, 0)


def equal(a, b):
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_split_reads_back_and_is_the_same_file_again(tmp_path, data, split):
    save_split(tmp_path / "a.json", split, data, to_rule(Dirichlet(0.3)), 0)
    save_split(tmp_path / "sub" / "b.json", split, data, to_rule(Dirichlet(0.3)), 0)
    assert equal(load_split(tmp_path / "a.json", data), split)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "sub" / "b.json").read_bytes()
    content = read_split(tmp_path / "a.json")
    assert content["rule"] == {"name": "dirichlet", "u": 0.3, "replacement": True, "refill": False}
    assert content["dataset"] == "little"
    assert [p.name for p in tmp_path.iterdir() if p.is_file()] == ["a.json"]
    unsorted = [np.array([5, 1, 5]), np.array([0])]
    save_split(tmp_path / "c.json", unsorted, data, {"name": "mine"}, 1)
    assert equal(load_split(tmp_path / "c.json", data), unsorted)


def test_a_split_of_50_000_samples_is_small(tmp_path):
    labels = np.repeat(np.arange(10), 5_000)
    big = from_arrays(np.zeros((50_000, 1)), labels, np.zeros((10, 1)), np.arange(10))
    save_split(tmp_path / "s.json", IID().split(labels, 10, 100, 0), big, {}, 0)
    assert (tmp_path / "s.json").stat().st_size < 250_000


def test_other_data_is_refused(tmp_path, data, split):
    save_split(tmp_path / "s.json", split, data, {}, 0)
    other = data.x_train.clone()
    other[3, 2, 1, 0] ^= 1
    with pytest.raises(FedsmooError, match="is not the 'little' given here"):
        load_split(tmp_path / "s.json", dataclasses.replace(data, x_train=other))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda t: t[:-30], "truncated"),
        (lambda t: "", "truncated"),
        (lambda t: t.replace('"seed":0', '"seed":1'), "altered"),
        (lambda t: t.replace('"indices":[[', '"indices":[[0,'), "altered"),
        (lambda t: t.replace('"version":1', '"version":2'), "version 2"),
        (lambda t: "[[1, 2]]", "not a split file"),
        (lambda t: json.dumps({k: v for k, v in json.loads(t).items() if k != "sha256"}), "altered"),
    ],
)
def test_an_altered_or_truncated_split_is_refused(tmp_path, data, split, harm, message):
    save_split(tmp_path / "s.json", split, data, {}, 0)
    (tmp_path / "s.json").write_text(harm((tmp_path / "s.json").read_text()))
    with pytest.raises(FedsmooError, match=message):
        load_split(tmp_path / "s.json", data)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([], "no clients"),
        ([[0], []], "client 1 has no samples"),
        ([[0, 60]], "points to sample 60"),
        ([[-1]], "sample -1"),
        ([[0.5]], "whole numbers"),
    ],
)
def test_bad_indices_are_refused_on_the_way_in_and_out(tmp_path, data, indices, message):
    with pytest.raises(FedsmooError, match=message):
        save_split(tmp_path / "s.json", [np.array(i) for i in indices], data, {}, 0)
    (tmp_path / "lists.json").write_text(json.dumps(indices))
    with pytest.raises(FedsmooError, match=message):
        import_split(tmp_path / "lists.json", data)


def test_a_split_of_flgo(tmp_path, data):
    shuffled = ["Client002", "Client000", "Client001"]  # the names say the order, not the places in the file
    content = {"client_names": shuffled, "Client000": {"data": [3, 1]}, "Client001": {"data": [2]}}
    path = tmp_path / "data.json"
    path.write_text(json.dumps({**content, "Client002": {"data": [0, 5]}}))
    assert [i.tolist() for i in import_split(path, data)] == [[0, 5], [3, 1], [2]]
    path.write_text(json.dumps(content))
    with pytest.raises(FedsmooError, match=r"client 'Client002' has no 'data'"):
        import_split(path, data)


def test_lists_of_other_simulators(tmp_path, data, split):
    (tmp_path / "list.json").write_text(json.dumps([i.tolist() for i in split]))
    names = {str(k): split[k].tolist() for k in (5, 0, 6, 2, 1, 4, 3)}
    (tmp_path / "dict.json").write_text(json.dumps(names))
    np.savez(tmp_path / "many.npz", **{f"client_{k}": i for k, i in enumerate([*split, *split])})
    np.save(tmp_path / "regular.npy", np.stack(split))
    ragged = np.empty(3, object)
    ragged[:] = [[1, 2], np.array([3]), [4.0, 5.0]]
    np.save(tmp_path / "ragged.npy", ragged)
    assert equal(import_split(tmp_path / "list.json", data), split)
    assert equal(import_split(tmp_path / "dict.json", data), split)
    assert equal(import_split(tmp_path / "many.npz", data), [*split, *split])  # client_10 after client_2
    assert equal(import_split(tmp_path / "regular.npy", data), split)
    assert equal(import_split(tmp_path / "ragged.npy", data), [np.array(i) for i in ([1, 2], [3], [4, 5])])


def write_copies(folder, data, split, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25), labels=True):
    """Normalised float32 copies of every client's images, channels first, as FL-Simulator keeps them."""
    folder.mkdir(exist_ok=True)
    x = (data.x_train.float() / 255 - torch.tensor(mean)) / torch.tensor(std)
    x = x.permute(0, 3, 1, 2).numpy()
    np.save(folder / "client_x.npy", np.stack([x[i] for i in split]))
    if labels:
        np.save(folder / "client_y.npy", np.stack([data.y_train.numpy()[i][:, None] for i in split]))
    return folder


def test_copied_images_are_found_again(tmp_path, data):
    split = [np.array([0, 7, 7, 30]), np.array([59, 1, 0, 12])]
    assert equal(import_split(write_copies(tmp_path / "a", data, split), data), split)
    assert equal(import_split(write_copies(tmp_path / "b", data, split, labels=False), data), split)


def test_equal_images_are_told_apart_by_their_labels(tmp_path, data):
    twins = data.x_train.clone()
    twins[7] = twins[2]  # labels 3 and 2
    data = dataclasses.replace(data, x_train=twins)
    split = [np.array([0, 7]), np.array([2, 1])]
    assert equal(import_split(write_copies(tmp_path / "a", data, split), data), split)
    with pytest.raises(FedsmooError, match="occurs under several labels"):
        import_split(write_copies(tmp_path / "b", data, split, labels=False), data)


def test_copies_that_cannot_be_traced_say_why(tmp_path, data):
    folder = write_copies(tmp_path / "a", data, [np.array([0, 3])])
    x = np.load(folder / "client_x.npy")
    y = np.load(folder / "client_y.npy")
    np.save(folder / "client_y.npy", y + 1)
    with pytest.raises(FedsmooError, match=r"has the label 1, but \[0\]"):
        import_split(folder, data)
    np.save(folder / "client_y.npy", y)
    np.save(folder / "client_x.npy", np.concatenate([x[:, :1], x[:, 1:] ** 3], 1))
    with pytest.raises(FedsmooError, match="256 equally spaced levels"):
        import_split(folder, data)
    np.save(folder / "client_x.npy", x[:, :, :, ::-1])
    with pytest.raises(FedsmooError, match="is not in the training part"):
        import_split(folder, data)
    np.save(folder / "client_x.npy", x[..., :3])
    with pytest.raises(FedsmooError, match="expected"):
        import_split(folder, data)
    (folder / "client_x.npy").unlink()
    with pytest.raises(FedsmooError, match=r"client_x.npy is missing"):
        import_split(folder / "client_y.npy", data)


@pytest.mark.parametrize(("name", "message"), [("a.json", "not JSON"), ("a.npy", "readable"), ("a.npz", "readable")])
def test_junk_to_import_says_so(tmp_path, data, name, message):
    (tmp_path / name).write_bytes(b"junk")
    with pytest.raises(FedsmooError, match=message):
        import_split(tmp_path / name, data)
    with pytest.raises(FedsmooError, match="no such file"):
        import_split(tmp_path / "nothing.json", data)


def test_summary_against_counting_by_hand():
    labels = np.array([0, 0, 0, 1, 1, 2])
    split = [np.array([0, 1, 3, 4]), np.array([0]), np.array([5, 5])]
    got = summary(split, labels, 4)
    assert counts(split, labels, 4).tolist() == [[2, 2, 0, 0], [1, 0, 0, 0], [0, 0, 2, 0]]
    assert got["samples_per_client"] == {"min": 1, "mean": 7 / 3, "max": 4}
    assert got["classes_per_client"] == {"min": 1, "mean": 4 / 3, "max": 2}
    assert got["class_totals"] == [3, 2, 2, 0]
    assert got["class_totals_std"] == pytest.approx(math.sqrt((1.25**2 + 2 * 0.25**2 + 1.75**2) / 4))
    assert got["effective_classes"] == pytest.approx((2 + 1 + 1) / 3)
    assert (got["different_samples"], got["unused_samples"]) == (5, 1)


def test_pictures_in_every_format(tmp_path, data, split):
    labels = data.y_train.numpy()
    for suffix, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        heat = heat_map(tmp_path / f"h.{suffix}", split, labels, 4, title="t")
        bars = class_totals(tmp_path / f"b.{suffix}", {"one": split, "two": split}, labels, 4)
        assert heat.read_bytes().startswith(magic)
        assert bars.read_bytes().startswith(magic)
    with pytest.raises(FedsmooError, match=r"end in \.png"):
        heat_map(tmp_path / "h.txt", split, labels, 4)


def test_the_heat_map_shows_what_is_there(tmp_path):
    """Four clients with one class each: the dark squares lie on the diagonal, everything else is white."""
    labels = np.repeat(np.arange(4), 10)
    split = [np.flatnonzero(labels == k) for k in (2, 0, 3, 1)]
    picture = Image.open(heat_map(tmp_path / "h.png", split, labels, 4))
    grey = np.asarray(picture.convert("L"))[:, : int(picture.width * 0.8)]  # without the colour bar
    marks, found = ndimage.label(grey < 30)
    squares = [k for k in range(1, found + 1) if (marks == k).sum() > 3_000]  # letters are smaller
    rows, columns = np.array(ndimage.center_of_mass(marks > 0, marks, squares)).T
    assert len(squares) == 4
    assert (np.diff(columns[np.argsort(rows)]) > 50).all()


@pytest.mark.parametrize("rule", [Dirichlet(0.3), Pathological(2, replacement=False), IID()])
def test_draw_and_describe_a_split(tmp_path, data, rule):
    split = rule.split(data.y_train.numpy(), 4, 6, 0)
    paths = draw(split, data, {"rule": to_rule(rule), "seed": 0}, tmp_path / "new", "s", "svg")
    assert [p.name for p in paths] == ["s-clients.svg", "s-totals.svg"]
    words = paths[1].read_text()
    assert "<svg" in words
    lines = describe(split, data)
    assert lines[0] == "6 clients hold 60 samples of little"
    assert any("their std" in line for line in lines)


def test_more_clients_than_samples_are_drawn_alone(tmp_path, data):
    """Without replacement some would be empty, so that there is no such twin to draw beside them."""
    clients = len(data.y_train) + 1
    split = Dirichlet(0.3).split(data.y_train.numpy(), 4, clients, 0)
    totals = draw(split, data, {"rule": to_rule(Dirichlet(0.3)), "seed": 0}, tmp_path, "s", "svg")[1].read_text()
    assert ("with replacement" in totals, "without replacement" in totals) == (True, False)


def test_draw_an_imported_split(tmp_path, data, split):
    assert all(p.exists() for p in draw(split, data, {"rule": {"name": "imported"}, "seed": 0}, tmp_path, "s"))
