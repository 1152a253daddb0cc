"""What labels are, told by their type and shape, and refused where that may mean two things."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.check import check, from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.own import own_data
from fedsmoo.data.sources import load
from fedsmoo.data.targets import classes_to_divide_by, is_sequence, names_to_divide_by

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 3)).astype(np.float32)
TOKENS = RNG.integers(5, size=(12, 4))
NUMBERS = RNG.standard_normal(12)
LABELS = (RNG.random((12, 5)) < 0.4).astype(int)
MASKED = np.where(RNG.random((12, 4)) < 0.5, TOKENS, -100)


@pytest.mark.parametrize(
    ("y", "target", "kind", "dtype", "shape", "classes", "outputs"),
    [
        (np.arange(12, dtype=np.uint8) % 3, None, "classes", torch.int64, (8,), 3, 3),
        (np.arange(12.0) % 3, "classes", "classes", torch.int64, (8,), 3, 3),
        (np.arange(12) % 2 == 0, None, "classes", torch.int64, (8,), 2, 2),
        (NUMBERS, None, "numbers", torch.float64, (8,), 0, 1),
        (NUMBERS.astype(np.float16), None, "numbers", torch.float32, (8,), 0, 1),
        (NUMBERS[:, None], None, "numbers", torch.float64, (8,), 0, 1),
        (RNG.standard_normal((12, 4)), None, "numbers", torch.float64, (8, 4), 0, 4),
        (np.arange(12), "numbers", "numbers", torch.float32, (8,), 0, 1),
        (np.arange(12.0), "numbers", "numbers", torch.float64, (8,), 0, 1),
        (LABELS, "labels", "labels", torch.float32, (8, 5), 5, 5),
        (LABELS.astype(bool), "labels", "labels", torch.float32, (8, 5), 5, 5),
        (LABELS.astype(float), "labels", "labels", torch.float32, (8, 5), 5, 5),
    ],
)
def test_targets_by_type_and_shape(
    y: Any, target: Any, kind: str, dtype: Any, shape: Any, classes: int, outputs: int
) -> None:
    data = from_arrays(X[:8], y[:8], X[8:], y[8:], target=target)
    assert (data.target, data.y_train.dtype, tuple(data.y_train.shape)) == (kind, dtype, shape)
    assert (data.classes, data.outputs) == (classes, outputs)
    assert data.y_test.dtype == dtype
    assert len(data.y_test) == 4
    np.testing.assert_array_equal(data.y_train.numpy().ravel(), np.asarray(y[:8], data.y_train.numpy().dtype).ravel())


def test_positions_without_a_label_are_no_class() -> None:
    data = from_arrays(TOKENS[:8], MASKED[:8], TOKENS[8:], MASKED[8:])
    assert data.target == "classes"
    assert data.classes == MASKED.max() + 1
    assert int(data.y_train.min()) == -100


def test_a_test_part_may_be_left_out() -> None:
    for given in ((X, NUMBERS), (X, NUMBERS, None, None), (X, NUMBERS, [], []), (X, NUMBERS, X[:0], NUMBERS[:0])):
        data = from_arrays(*given)
        assert not data.has_test
        assert data.x_test.shape == (0, 3)
        assert data.y_test.shape == (0,)
        assert data.y_test.dtype == data.y_train.dtype
    assert from_arrays(X, NUMBERS).fingerprint.content == from_arrays(X, NUMBERS, [], []).fingerprint.content


def test_the_same_floats_are_other_data_as_labels_than_as_numbers() -> None:
    one, other = (from_arrays(X, LABELS.astype(np.float32), target=t) for t in ("labels", "numbers"))
    assert torch.equal(one.y_train, other.y_train)
    assert one.fingerprint.content != other.fingerprint.content


HALF = np.array([0.5, *range(11)])
SEQUENCE = from_arrays(TOKENS, MASKED)
WRONG: list[tuple[Any, str]] = [
    (lambda: from_arrays(X, np.arange(12.0)), "convert classes with y.astype(int) or y.long(); for a regression say"),
    (lambda: from_arrays(X, LABELS.astype(float)), "of one-hot classes use y.argmax(1); for several labels say"),
    (lambda: from_arrays(X, LABELS), 'y.argmax(1); several labels: target="labels"'),
    (lambda: from_arrays(X, LABELS.astype(bool)), 'several labels: target="labels"'),
    (lambda: from_arrays(X, HALF, target="classes"), "classes must be whole numbers, but some have fractions"),
    (lambda: from_arrays(X, np.arange(12), X, HALF), "y_train holds classes, but y_test numbers with fractions"),
    (
        lambda: from_arrays(X, np.where(HALF > 3, np.nan, HALF)),
        "7 of 12 targets are NaN or infinite, the first is that",
    ),
    (lambda: from_arrays(X, LABELS * 2, target="labels"), "several labels are 0 or 1 each, but y holds other values"),
    (lambda: from_arrays(X, np.arange(12) % 2, target="labels"), "several labels are a matrix of 0 and 1, [12, K]"),
    (lambda: from_arrays(X, LABELS, X, LABELS[:, :3], target="labels"), "3 labels a sample, but the data set has 5"),
    (lambda: from_arrays(X, RNG.random((12, 2)), X, RNG.random((12, 3))), "have shape [2], of the test part [3]"),
    (lambda: from_arrays(X, NUMBERS, target="number"), "unknown target 'number'"),
    (lambda: check(replace(SEQUENCE, target="words")), "unknown target 'words'"),
    (
        lambda: check(replace(SEQUENCE, target="numbers")),
        "the target is 'numbers', but y is torch.int64: use y.float()",
    ),
    (lambda: from_arrays(TOKENS, np.full((12, 4), -100)), "no position has a label: all are -100"),
    (lambda: from_arrays(TOKENS, MASKED - 1), "but must lie between 0 and"),
    (lambda: from_arrays(X, np.where(np.arange(12) == 3, -100, 1)), "labels run from -100 to 1, but must lie between"),
    (lambda: from_arrays(X[:0], NUMBERS[:0]), "train part: it is empty"),
    (lambda: from_arrays(X, NUMBERS, None, NUMBERS), "x_test: cannot be read as an array of numbers"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[str(n) for n in range(len(WRONG))])
def test_what_may_mean_two_things_is_refused_in_a_line(make: Any, message: str) -> None:
    with pytest.raises(FedsmooError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_partition_divides_by() -> None:
    """Numbers by tenths of the samples; several labels by the first; sequences by the first position with a label."""
    numbers = from_arrays(np.zeros((40, 1)), RNG.permutation(40) + 0.5)
    labels, classes = classes_to_divide_by(numbers)
    assert classes == 10
    assert np.bincount(labels).tolist() == [4] * 10
    np.testing.assert_array_equal(labels, (numbers.y_train.numpy() - 0.5) // 4)
    several = from_arrays(np.zeros((3, 1)), [[0, 1, 1], [0, 0, 0], [1, 0, 0]], target="labels")
    labels, classes = classes_to_divide_by(several)
    assert (labels.tolist(), classes, names_to_divide_by(several)) == ([1, 3, 0], 4, ("0", "1", "2", "none"))
    places = from_arrays(np.zeros((2, 3), int), [[-100, 2, 1], [-100, -100, -100]])
    assert [a if isinstance(a, int) else a.tolist() for a in classes_to_divide_by(places)] == [[2, 0], 3]


def test_equal_numbers_are_divided_too() -> None:
    labels, classes = classes_to_divide_by(from_arrays(np.zeros((6, 1)), np.full(6, 0.5)))
    assert labels.max() < classes
    assert len(set(labels.tolist())) == 1


def test_a_function_of_the_users_may_return_any_targets(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom fedsmoo.data.check import from_arrays\n"
        "def regression():\n    x = np.arange(8.)[:, None]\n    return x, x[:, 0] / 3, None, None\n"
        "def several():\n    x = np.arange(8.)[:, None]\n"
        "    return from_arrays(x, np.eye(4, dtype=int)[np.arange(8) % 4], target='labels')\n"
    )
    assert own_data(f"{tmp_path}/mine.py:regression", 0, {}).target == "numbers"
    several: Dataset = own_data(f"{tmp_path}/mine.py:several", 0, {})
    assert (several.target, several.classes, several.has_test) == ("labels", 4, False)


def test_an_npz_may_say_what_its_labels_are(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X, y_train=LABELS, x_test=X, y_test=LABELS, target="labels")
    np.savez(tmp_path / "b.npz", x_train=X, y_train=NUMBERS, x_test=X, y_test=NUMBERS)
    assert load("mine", tmp_path / "a.npz").target == "labels"
    assert load("mine", tmp_path / "b.npz").target == "numbers"


def test_a_single_label_of_each_sample_is_no_sequence() -> None:
    one = torch.zeros(12, 1, dtype=torch.int64)
    assert is_sequence(SEQUENCE, torch.cat([one, one], 1), torch.cat([one, one], 1))
    assert not is_sequence(SEQUENCE, one, one)
