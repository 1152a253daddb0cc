"""The data sets that need no files: digits and synthetic; and the checks that all data passes."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data import synthetic
from fedsmoo.data.catalog import SPECS
from fedsmoo.data.check import from_arrays
from fedsmoo.data.digits import read_images
from fedsmoo.data.forms.published.federated import FEDERATED
from fedsmoo.data.own import OWN
from fedsmoo.data.sources import MADE, SOURCES, load


def test_digits_are_all_there_once_and_stratified():
    data = load("digits")
    raw = load_digits()
    assert data.x_train.shape == (1438, 1, 8, 8)
    assert data.x_train.dtype == torch.float32
    both = torch.cat([data.x_train, data.x_test]).reshape(1797, 64).double() * 16
    rows = {tuple(r) for r in both.round().int().tolist()}
    assert rows == {tuple(r) for r in raw.data.astype(int).tolist()}
    per_class = torch.bincount(data.y_test)
    assert torch.equal(per_class, torch.from_numpy(np.round(np.bincount(raw.target) * 0.2).astype(int)))
    assert torch.equal(load("digits").x_test, data.x_test)


def test_synthetic_labels_are_what_each_clients_true_model_says():
    data = load("synthetic(1, 1)", seed=3)
    assert data.name == "synthetic(1,1)"
    assert len(data.natural) == 30
    assert data.x_train.shape[1] == 60
    for i, mine in enumerate(data.natural):
        client = synthetic.make_client(1.0, 1.0, int(synthetic.client_sizes(30, 3)[i]), 3, i)
        logits = data.x_train[mine].double().numpy() @ client.weight + client.bias
        assert np.array_equal(logits.argmax(1), data.y_train[mine].numpy())
    assert torch.equal(torch.cat(data.natural), torch.arange(len(data.x_train)))


def test_synthetic_spreads_follow_alpha_and_beta():
    """Over 400 clients: the mean of W_i has variance alpha + 1/600, that of x has beta + 1/60 (plus sampling noise)."""
    alpha, beta = 0.5, 2.0
    made = [synthetic.make_client(alpha, beta, 200, 0, i) for i in range(400)]
    assert np.var([c.weight.mean() for c in made]) == pytest.approx(alpha + 1 / 600, rel=0.25)
    assert np.var([c.x.mean() for c in made]) == pytest.approx(beta + 1 / 60, rel=0.25)
    within = np.mean([c.x.var(0) for c in made], axis=0)
    assert within == pytest.approx(np.arange(1, 61) ** -1.2, rel=0.06)


def test_synthetic_seeds_and_sizes():
    a, b, c = load("synthetic"), load("synthetic(0.5,0.5)"), load("synthetic", seed=1)
    assert torch.equal(a.x_train, b.x_train)
    assert a.x_train.shape != c.x_train.shape
    sizes = np.concatenate([synthetic.client_sizes(30, s) for s in range(50)]) - 50
    logs = np.log(sizes[(sizes > 0) & (sizes < 5_000)])
    assert np.median(logs) == pytest.approx(4.0, abs=0.25)  # lognormal(4, 2), cut on both sides about alike


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.full((4, 2), np.nan), [0, 1, 0, 1], np.zeros((2, 2)), [0, 1]), "4 of 4 samples hold NaN"),
        ((np.zeros((0, 2)), [], np.zeros((2, 2)), [0, 1]), "empty"),
        ((np.zeros((4, 2)), [0, 1, 0], np.zeros((2, 2)), [0, 1]), "4 samples but 3 labels"),
        ((np.zeros((4, 2)), [0, -1, 0, 1], np.zeros((2, 2)), [0, 1]), "must lie between 0 and 1"),
        ((np.zeros((4, 2)), [0.0, 1, 0, 1], np.zeros((2, 2)), [0, 1]), "whole numbers"),
        ((np.zeros((4, 2)), [0, 1, 0, 1], np.zeros((2, 3)), [0, 1]), "both must be alike"),
        (([["a"]], [0], [["b"]], [0]), "cannot be read as an array of numbers"),
        ((np.zeros((4, 5), np.uint8), [0, 1, 0, 1], np.zeros((2, 5), np.uint8), [0, 1]), "are no images"),
    ],
)
def test_bad_arrays_are_one_clear_line(arguments, message):
    with pytest.raises(FedsmooError, match=message):
        from_arrays(*arguments)


def test_arrays_in_any_layout_become_images_with_their_own_scale():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (20, 6, 5, 3), dtype=np.uint8)
    y = np.arange(20, dtype=np.uint8) % 4
    last = from_arrays(x, y, x[:4], y[:4])
    first = from_arrays(
        torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y), x[:4].transpose(0, 3, 1, 2), y[:4]
    )
    assert torch.equal(last.x_train, first.x_train)
    assert last.classes == 4
    assert last.mean == pytest.approx((x / 255).reshape(-1, 3).mean(0))
    assert last.std == pytest.approx((x / 255).reshape(-1, 3).std(0))
    grey = from_arrays(x[..., 0], y, x[:4, ..., 0], y[:4])
    assert grey.x_train.shape == (20, 6, 5, 1)
    column = from_arrays(x.astype(np.float32), y[:, None], x[:4].astype(np.float32), y[:4, None])
    assert column.y_train.shape == (20,)
    assert column.mean is None


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("cifar11", None, "did you mean 'cifar10"),
        ("digits", "somewhere", "takes no path"),
        ("synthetic(a,b)", None, "must be numbers"),
        ("synthetic(-1,0)", None, "at least 0"),
        ("cifar10", "/nowhere/at/all", "does not exist"),
    ],
)
def test_bad_names_are_one_clear_line(name, path, message, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSMOO_DATA", str(tmp_path))
    with pytest.raises(FedsmooError, match=message):
        load(name, path)


def test_every_source_has_one_line():
    assert {"digits", "cifar10", "cifar100", "fashion-mnist", "mnist", "tiny-imagenet", "text:PATH"} <= set(SOURCES)
    assert set(SOURCES) == {*MADE, *SPECS, *FEDERATED} - {OWN}
    assert all(line and "\n" not in line for line in SOURCES.values())


def test_digits_are_those_that_scikit_learn_loads() -> None:
    images, labels = read_images()
    known = load_digits()
    assert np.array_equal(images, known.images)
    assert np.array_equal(labels, known.target)
