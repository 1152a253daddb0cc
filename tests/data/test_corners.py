"""Corners of data that arrive from elsewhere: split files of other shapes, parts that do not fit, one sample alone."""

from __future__ import annotations

import dataclasses
import json
import zipfile

import numpy as np
import pytest
import torch

from fedsmoo import simulate
from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.batches.cohort import cohort
from fedsmoo.data.check import check, from_arrays, kind_of
from fedsmoo.data.dataset import Dataset, refuse_beyond_type
from fedsmoo.data.division.draws import client_sizes
from fedsmoo.data.division.import_split import import_split
from fedsmoo.data.division.partition import IID, Dirichlet, Pathological
from fedsmoo.data.files.download import _remember
from fedsmoo.data.files.tree import archive_tree
from fedsmoo.data.synthetic import client_sizes as synthetic_sizes

X = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (8, 2, 2, 1)).astype(np.uint8))
X[0], X[1] = 0, 255  # so that the copies show which level is black and which is white
Y = torch.arange(8) % 2
IMAGES = Dataset("little", X, Y, X, Y, 2, mean=(0.5,), std=(0.25,))


def test_copies_may_be_named_by_their_folder_or_by_either_file(tmp_path):
    split = [np.array([0, 1, 6]), np.array([5, 2, 2])]
    x = ((X.float() / 255 - 0.3) / 0.2).permute(0, 3, 1, 2).numpy()
    np.save(tmp_path / "client_x.npy", np.stack([x[i] for i in split]))
    np.save(tmp_path / "client_y.npy", np.stack([Y.numpy()[i] for i in split]))
    for place in (tmp_path, tmp_path / "client_x.npy", tmp_path / "client_y.npy"):
        found = import_split(place, IMAGES)
        assert [i.tolist() for i in found] == [[0, 1, 6], [5, 2, 2]]


@pytest.mark.parametrize("content", ["7", '"text"', "[1, 2]", "[[1], 2]", '{"a": 3}', "null"])
def test_what_is_no_list_of_lists_is_no_split(tmp_path, content):
    (tmp_path / "s.json").write_text(content)
    with pytest.raises(FedsmooError, match="one list of indices per client"):
        import_split(tmp_path / "s.json", IMAGES)
    (tmp_path / "s.json").write_text(json.dumps([[1.0, 2.0], [3]]))
    assert [i.tolist() for i in import_split(tmp_path / "s.json", IMAGES)] == [[1, 2], [3]]


def test_parts_of_different_kinds_are_refused():
    assert [kind_of(x) for x in (X, X.float(), X.long())] == ["images", "numbers", "text"]
    assert check(IMAGES) is IMAGES
    plain = dataclasses.replace(IMAGES, mean=None, std=None)
    for train, test in ((X.float(), X), (X.long(), X.float()), (X.float(), X.long())):
        with pytest.raises(FedsmooError, match="both must be alike"):
            check(dataclasses.replace(plain, x_train=train, x_test=test))


def test_one_sample_is_enough_for_one_client():
    for rule in (IID(), IID(True), Dirichlet(), Dirichlet(0.5, False), Pathological(1), Pathological(1, False)):
        assert [i.tolist() for i in rule.split(np.array([1]), 3, 1, 0)] == [[0]]
    with pytest.raises(FedsmooError, match="empty"):
        client_sizes(0, 1, True)
    assert client_sizes(7, 3, False).tolist() == [3, 2, 2]
    assert client_sizes(7, 3, True).tolist() == [2, 2, 2]
    assert client_sizes(2, 3, True).tolist() == [1, 1, 1]


@pytest.mark.parametrize("sampling", ["uniform", "bernoulli"])
def test_cohorts_are_plain_numbers_in_order(sampling):
    """A run's metrics are JSON, which knows no NumPy. 400 cohorts of 3 of 9: each in a third, by 5 deviations."""
    seen = np.zeros(9)
    for number in range(400):
        found = cohort(1, number, 9, 3, sampling)
        assert all(type(i) is int for i in found)
        assert found == sorted(set(found))
        assert sampling == "bernoulli" or len(found) == 3
        seen[found] += 1
    assert abs(seen - 400 / 3).max() < 5 * np.sqrt(400 * 2 / 9)
    assert cohort(1, 0, 9, 3, sampling) != cohort(2, 0, 9, 3, sampling) != cohort(2, 1, 9, 3, sampling)
    for size in (0, 10):
        with pytest.raises(FedsmooError, match="from 1 to 9"):
            cohort(0, 0, 9, size, sampling)
    assert cohort(0, 0, 9, 9) == list(range(9))


def test_the_version_on_a_server_is_kept_only_where_it_is_sure(tmp_path):
    file = tmp_path / "part.etag"
    _remember(file, "")  # nothing known, nothing there
    assert not file.exists()
    _remember(file, '"a1"')
    assert file.read_text() == '"a1"'
    _remember(file, 'W/"a1"')  # a weak one does not promise the same bytes
    assert not file.exists()


def test_a_damaged_archive_is_named(tmp_path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:  # stored as it is, so that the text can be found and changed
        archive.writestr("folder/a.txt", "the text of a member" * 9)
    good = path.read_bytes()
    assert archive_tree(path).read("folder/a.txt") == b"the text of a member" * 9
    path.write_bytes(good.replace(b"member", b"number", 1))  # not what its checksum says
    with pytest.raises(FedsmooError, match=r"folder/a\.txt cannot be read"):
        archive_tree(path).read("folder/a.txt")
    path.write_bytes(good.replace(b"PK\1\2", b"PK\1\3"))  # no list of members where it should be
    with pytest.raises(FedsmooError, match="damaged or truncated archive"):
        archive_tree(path)


def test_sizes_of_synthetic_clients():
    """50 and a lognormal(4, 2): half of them below 50 + e^4 = 104.6; P(Z > (ln 5000 - 4) / 2) = 1.2 % are cut."""
    sizes = np.concatenate([synthetic_sizes(500, seed) for seed in range(20)])
    assert (sizes.min() >= 50, sizes.max()) == (True, 5050)
    assert np.median(sizes) == pytest.approx(50 + np.exp(4), rel=0.1)
    assert np.mean(sizes == 5050) == pytest.approx(0.012, abs=0.005)


@pytest.mark.parametrize("part", ["x_train", "y_train", "x_test", "y_test"])
def test_values_beyond_the_type_of_a_run_are_named_before_it_begins(part):
    """They become infinite, and the first round said that the learning rate was too large."""
    arrays = {name: np.linspace(0.5, 1.2, 6) for name in ("x_train", "y_train", "x_test", "y_test")}
    data = from_arrays(**{name: a[:, None] if name[0] == "x" else a for name, a in arrays.items()})
    refuse_beyond_type(data, torch.float32)
    arrays[part][4] = -1e39
    data = from_arrays(**{name: a[:, None] if name[0] == "x" else a for name, a in arrays.items()})
    refuse_beyond_type(data, torch.float64)
    says = rf"{part} holds values beyond 3.4e\+38, which are infinite in float32, the first at sample 4: scale them, or"
    with pytest.raises(FedsmooError, match=says):
        refuse_beyond_type(data, torch.float32)
    with pytest.raises(FedsmooError, match=says):
        simulate("mlp", data, algorithm="fedavg", rounds=1, clients=2, cohort=2, partition="iid")
