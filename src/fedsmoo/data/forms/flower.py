"""Flower Datasets: a partitioner's partitions, or those of a federated data set, as clients; and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.user_code import call
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.forms.huggingface import huggingface_part
from fedsmoo.data.forms.options import Options
from fedsmoo.data.forms.parts import Federation, Part


def is_flower(value: Any) -> bool:
    """Return whether a value hands out partitions by their numbers, as Flower's partitioners do."""
    return callable(getattr(type(value), "load_partition", None))


def flower_parts(value: Any, options: Options, what: str) -> Federation:
    """Return the partitions of a partitioner, in its order, as clients.

    Of a ``FederatedDataset`` those of its part ``train`` (or of the only part that is divided). A part ``test`` that is
    divided as well gives the clients their own test parts, one that is not is the test part of all.
    """
    assigned = getattr(value, "is_dataset_assigned", None)
    if callable(assigned) and not assigned():
        raise FedsmooError(f"{what}: the partitioner has no data yet: set partitioner.dataset first")
    divided = call(lambda: getattr(value, "partitioners", None), f"{what}: its data cannot be loaded")
    if not divided:
        return Federation(partitions(value, options, what), natural=True)
    names = list(divided)
    first = "train" if "train" in divided else names[0]
    train = partitions(divided[first], options, f"{what}: {first}")
    if "test" in divided and first != "test":
        tests = partitions(divided["test"], options, f"{what}: test")
        if len(tests) != len(train):
            raise FedsmooError(f"{what}: {len(train)} clients train, but the test part has {len(tests)} partitions")
        return Federation(train, tests, natural=True)
    try:
        whole = value.load_split("test")
    except Exception:  # there is none: it says so in a way of its own
        return Federation(train, natural=True)
    return Federation(train, (), huggingface_part(whole, options, f"{what}: test"), natural=True)


def partitions(value: Any, options: Options, what: str) -> tuple[Part, ...]:
    """Return each partition as a part."""
    count = call(lambda: value.num_partitions, f"{what}: its number of partitions")
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise FedsmooError(f"{what}: num_partitions is {count!r}, but must be a number of clients from 1")
    return tuple(
        huggingface_part(call(value.load_partition, f"{what}: partition {i}", i), options, f"{what}: client {i}")
        for i in range(int(count))
    )


def partitioner(indices: Sequence[np.ndarray]) -> Any:
    """Return a partitioner of Flower Datasets that divides a data set into these clients, by the numbers of its rows.

    The rows must be in the order of the data set that was divided: ``client_indices`` of a run, or a split file's.
    """
    try:
        from flwr_datasets.partitioner import Partitioner
    except ImportError:
        raise FedsmooError("a partitioner needs Flower Datasets: pip install flwr-datasets") from None
    parts = [np.asarray(part) for part in indices]

    class Split(Partitioner):
        """A division that is known: partition i are the rows of client i."""

        def load_partition(self, partition_id: int) -> Any:
            return self.dataset.select(parts[partition_id])

        @property
        def num_partitions(self) -> int:
            return len(parts)

    return Split()


def to_huggingface(data: Dataset, indices: Sequence[np.ndarray]) -> Any:
    """Return the training part as a HuggingFace data set with a column ``client``, a row per sample that one holds.

    ``NaturalIdPartitioner(partition_by="client")`` of Flower Datasets divides it into the same clients. Samples are in
    the column ``x``, labels in ``y``; a sample that several clients hold is there several times.
    """
    try:
        from datasets import Dataset as Table
    except ImportError:
        raise FedsmooError("a HuggingFace data set needs its package: pip install datasets") from None
    held = np.concatenate([np.asarray(i) for i in indices])
    who = np.repeat(np.arange(len(indices)), [len(i) for i in indices])
    x, y = (part.cpu().numpy()[held] for part in (data.x_train, data.y_train))
    return Table.from_dict({"x": x, "y": y, "client": who}).with_format("numpy")
