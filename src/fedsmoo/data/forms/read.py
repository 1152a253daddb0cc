"""Data in any form as a ``Dataset``: what a value is, and what it is taken apart into."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedsmoo.core.errors import FedsmooError, FedsmooWarning, brief
from fedsmoo.data.check import check, check_own_classes, from_arrays
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.forms.build import build
from fedsmoo.data.forms.columns import NUMBER, SAMPLES, TARGETS, TEXT, choose
from fedsmoo.data.forms.flower import flower_parts, is_flower
from fedsmoo.data.forms.frames import frame_part, is_pandas, is_table, of_columns, warn_other_order
from fedsmoo.data.forms.huggingface import huggingface_part, is_huggingface
from fedsmoo.data.forms.options import Options
from fedsmoo.data.forms.parts import Federation, Part
from fedsmoo.data.forms.torch_sets import is_torch, kind_of, torch_part

NUMBERS = int | float | np.generic
FOUR = ("x_train", "y_train", "x_test", "y_test")
TRAIN, TESTS = ("train", "training"), ("test", "testing", "validation", "valid", "val", "dev")
MUST = "a Dataset, (x_train, y_train, x_test, y_test), or another form of data (help(fedsmoo.read_data) lists them)"


def read_data(value: Any, name: str = "custom", what: str = "data", **options: Any) -> Dataset:
    """Return data in any form as a data set, checked.

    Args:
        value: a ``Dataset``; four arrays; a torch or HuggingFace data set, a DataFrame, a pair of arrays ``(x, y)``;
            a pair ``(train, test)`` or a dict of such; a list or dict of them with one for each client; a Flower
            partitioner.
        name: what the data set is called.
        what: what the value is called in errors.
        options: ``x``, ``y`` and ``client`` name columns, ``test`` is a share to be tested on, ``target`` says what
            ``y`` is (``"classes"``, ``"numbers"``, ``"labels"``), ``pad`` is a tokenizer's pad id.

    >>> read_data((np.zeros((4, 2)), [0, 1, 0, 1]), test=0.5).y_test.shape
    torch.Size([2])
    """
    chosen = Options.of(options, what)
    if isinstance(value, Dataset):
        if chosen.given():
            raise FedsmooError(f"{what} is a Dataset, which says all: leave out {', '.join(chosen.given())}")
        return check(value)
    if is_four_arrays(value):
        return from_four_arrays(value, chosen, name, what)
    return build(split_into_parts(value, chosen, what), chosen, name)


def from_four_arrays(value: Any, options: Options, name: str, what: str) -> Dataset:
    """Return four arrays as a data set."""
    unused = [n for n in options.given() if n != "target"]
    if unused:
        raise FedsmooError(f"{what} is four arrays, which say all: leave out {', '.join(unused)}")
    x_train, y_train, x_test, y_test = (value[n] for n in FOUR) if isinstance(value, Mapping) else value
    if is_table(x_train) and is_table(x_test):
        x_test = of_columns(x_test, x_train.columns, f"{what}: x_test")
    if is_table(y_train) and is_table(y_test):
        y_test = of_columns(y_test, y_train.columns, f"{what}: y_test")
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        warn_other_order(x, y, f"{what}: {part} part")
    data = from_arrays(x_train, y_train, x_test, y_test, name, target=options.target)
    check_own_classes(data)
    return data


def is_four_arrays(value: Any) -> bool:
    """Return whether a value is meant as four arrays, ``x_train`` to ``y_test``, in this order or by name."""
    if isinstance(value, Mapping):
        return all(n in value for n in FOUR)
    if not isinstance(value, tuple | list) or len(value) != 4 or all(map(is_table, value)):
        return False
    return all(is_array(v) or is_pandas(v) for v in value) or (
        isinstance(value, tuple) and not any(map(is_labelled, value))
    )


def is_array(value: Any) -> bool:
    """Return whether a value is an array: a tensor, NumPy's, or lists of such or of numbers, or of text."""
    inside = isinstance(value, list)
    while isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, tuple):
        return all(isinstance(v, NUMBERS) for v in value)
    return isinstance(value, Tensor | np.ndarray | list | NUMBERS) or (inside and isinstance(value, str))


def is_labelled(value: Any) -> bool:
    """Return whether a value is samples with their labels in one of the forms, without a test part."""
    pair = isinstance(value, tuple) and len(value) == 2 and all(is_array(v) or is_pandas(v) for v in value)
    tables = pair and all(map(is_table, value))
    return (
        (pair and not tables) or is_columns(value) or is_pandas(value) or is_huggingface_table(value) or is_torch(value)
    )


def is_columns(value: Any) -> bool:
    """Return whether a value is a dict of arrays, or has samples and labels among what it holds, as scikit-learn's."""
    if not isinstance(value, Mapping) or not value or is_huggingface(value):
        return False
    usual = any(is_column(value.get(n)) for n in TARGETS) and any(is_column(value.get(n)) for n in SAMPLES)
    return usual or all(is_column(v) for v in value.values())


def is_column(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, list) and bool(value) and is_array(value)


def is_huggingface_table(value: Any) -> bool:
    return is_huggingface(value) and not isinstance(value, Mapping)


def make_part(value: Any, options: Options, what: str) -> Part:
    """Return samples with their labels, in whichever form, as a part."""
    if is_huggingface_table(value):
        return huggingface_part(value, options, what)
    if is_pandas(value):
        return frame_part(value, options, what)
    if is_columns(value):
        return named_arrays({n: v for n, v in value.items() if is_column(v)}, options, what)
    if isinstance(value, tuple) and is_labelled(value):
        return pair_of_arrays(value, options, what)
    if is_torch(value):
        return torch_part(value, options, what)
    raise FedsmooError(f"{what} is {brief(value)}, but must be {MUST}")


def pair_of_arrays(value: tuple[Any, Any], options: Options, what: str) -> Part:
    """Return samples and labels, each an array or a table of pandas, as a part."""
    x, y = value
    table = is_table(x)
    named = [n for n in ("x", "y", "client") if getattr(options, n) is not None and not (table and n == "x")]
    if named:
        raise FedsmooError(f"{what}: {named[0]} names a column, but two arrays have none: leave it out")
    x = x if options.x is None else of_columns(x, options.x, what)
    if not np.ndim(x) or not np.ndim(y):
        raise FedsmooError(f"{what}: (x, y) is {brief(value)}, but both must have a row for each sample")
    if len(x) != len(y):
        raise FedsmooError(f"{what}: {len(x)} samples but {len(y)} labels; each sample needs one")
    warn_other_order(x, y, what)
    targets = tuple(y.columns) if is_table(y) and len(y.columns) > 1 else None
    return Part(len(x), what, x, y, columns=tuple(x.columns) if table else None, targets=targets)


def kind_of_array(value: Any) -> str:
    """Return what an array holds for each sample."""
    if isinstance(value, list | np.ndarray) and len(value) and isinstance(value[0], str):
        return TEXT
    return NUMBER if np.ndim(value) == 1 else kind_of(value)


def named_arrays(value: Mapping[Any, Any], options: Options, what: str) -> Part:
    """Return a dict of arrays, such as those of scikit-learn, as a part: columns by rule or by name."""
    lengths = {n: len(v) for n, v in value.items()}
    kinds = {n: kind_of_array(v) for n, v in value.items()}
    chosen = choose(kinds, options, what, lambda _: "leave it out")
    wanted = (*chosen.x, *chosen.y)
    if stray := [n for n in FOUR if n in value and n not in wanted]:
        raise FedsmooError(f"{what}: {stray[0]!r} would be left out: name the four arrays {', '.join(FOUR)}")
    rows = (*wanted, *(() if chosen.client is None else (chosen.client,)))
    odd = next((n for n in rows if lengths[n] != lengths[chosen.y[0]]), None)
    if odd is not None:
        raise FedsmooError(f"{what}: {odd!r} has {lengths[odd]} rows, but {chosen.y[0]!r} has {lengths[chosen.y[0]]}")
    xs, ys = ([np.asarray(value[n]) for n in names] for names in (chosen.x, chosen.y))
    x = value[chosen.x[0]] if len(xs) == 1 and not chosen.features else np.stack(xs, 1)
    if chosen.features:
        x = x if x.dtype.kind == "f" else x.astype(np.float64)
    clients = None if chosen.client is None else (lambda: np.asarray(value[chosen.client]))
    y = value[chosen.y[0]] if len(ys) == 1 else np.stack(ys, 1)
    return Part(lengths[chosen.y[0]], what, x, y, inputs=chosen.inputs, columns=chosen.named, clients=clients)


def split_into_parts(value: Any, options: Options, what: str) -> Federation:
    """Split a value into parts: a single one, a training and a test part, or the parts of each client."""
    if is_flower(value):
        return flower_parts(value, options, what)
    if is_labelled(value):
        return Federation((make_part(value, options, what),))
    pair = train_and_test(value, what)
    if pair is not None:
        return with_test(
            split_into_parts(pair[0], options, f"{what}: train part"), pair[1], options, f"{what}: test part"
        )
    if isinstance(value, Mapping | list):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        return from_clients([(f"{what}: client {n}", v) for n, v in entries], options, what)
    if isinstance(value, tuple):
        raise FedsmooError(f"{what} has {len(value)} parts, but must be {MUST}")
    raise FedsmooError(f"{what} is {brief(value)}, but must be {MUST}")


def split_like(known: Sequence[Part], value: Any, options: Options, what: str) -> Federation:
    """Split a value into parts whose samples have the columns of known parts, as the first that has any orders them."""
    found = split_into_parts(value, options, what)
    columns = next((p.columns for p in known if p.columns is not None), None)
    if columns is None or all(p.columns in (None, columns) for p in found.parts):
        return found
    return split_into_parts(value, dataclasses.replace(options, x=columns), what)


def train_and_test(value: Any, what: str) -> tuple[Any, Any] | None:
    """Return the training and the test part of a pair or of a dict that names them; ``None`` for anything else."""
    if isinstance(value, tuple) and len(value) == 2:
        return value[0], value[1]
    if not isinstance(value, Mapping):
        return None
    train = next((n for n in TRAIN if n in value), None)
    if train is None:
        return None
    test = next((n for n in TESTS if n in value), None)
    unused = [str(n) for n in value if n not in (train, test)]
    if unused:
        used = repr(train) if test is None else f"{train!r} and {test!r}"
        warnings.warn(f"{what}: {used} are used, {', '.join(unused)} not", FedsmooWarning, stacklevel=2)
    return value[train], None if test is None else value[test]


def with_test(found: Federation, test: Any, options: Options, what: str) -> Federation:
    """Return data with a test part: one for all, or one for each client."""
    if test is None:
        return found
    if found.tests:
        raise FedsmooError(f"{what}: clients have test parts of their own: leave one of them out")
    other = split_like(found.train, test, options, what)
    if other.tests:
        raise FedsmooError(f"{what}: a test part has no test part of its own")
    if not other.natural:
        return Federation(found.train, found.own_test, other.train[0], found.natural)
    if not found.natural or len(other.train) != len(found.train):
        count = len(found.train) if found.natural else "no"
        raise FedsmooError(
            f"{what}: test parts of {len(other.train)} clients, but there are {count} clients to train on"
        )
    return Federation(found.train, other.train, None, True)


def from_clients(entries: Sequence[tuple[str, Any]], options: Options, what: str) -> Federation:
    """Return the parts of a list of clients' data, each with or without a test part of its own."""
    if not entries:
        raise FedsmooError(f"{what} has 0 parts, but must be {MUST}")
    train: list[Part] = []
    tests: list[Part | None] = []
    for name, entry in entries:
        if is_four_arrays(entry):
            x, y, x_test, y_test = [entry[n] for n in FOUR] if isinstance(entry, Mapping) else entry
            entry = ((x, y), (x_test, y_test))
        if isinstance(entry, list) and len(entry) == 2 and all(is_array(v) for v in entry):
            entry = tuple(entry)
        if isinstance(entry, list) or not (is_labelled(entry) or train_and_test(entry, name) is not None):
            raise FedsmooError(f"{name} is {brief(entry)}, but must be data of one client: (x, y), or (train, test)")
        one = split_like(train, entry, options, name)
        if one.natural or one.train[0].clients is not None:
            raise FedsmooError(f"{name} has clients of its own, but each entry of a list is one client")
        train.append(one.train[0])
        tests.append(one.test)
    return Federation(tuple(train), tuple(tests), None, True)
