"""Who holds which samples: a rule turns labels into one list of indices per client.

A client first draws a *prior* over the classes (Dirichlet: ``p_i ~ Dir(u, ..., u)``; pathological: uniform over ``c``
random classes; iid: no prior), then its samples one by one: a class from the prior, a sample from the class.

- *With replacement* every client draws as if it were alone: samples may be shared between clients (or repeated by one),
  every client has ``N // m`` of them, and the class totals of the federation become uneven. For Dirichlet(u) over K
  equal classes the mean square deviation of a class total is
  ``m * (n (1/K)(1 - 1/K) + n (n - 1) (1/K)(1 - 1/K) / (K u + 1))`` with ``n = N / m``.
- *Without replacement* every sample is held by exactly one client. When a class runs out, the clients that wanted it
  draw again among their classes that are left, and from whatever is left once they have none. Pathological clients
  instead divide the classes as evenly as their choices permit, so that all keep to ``c`` classes where they can.

Reference: Sun et al., "Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching Global
Consistency and Smooth Landscape", ICML 2023, "Dataset splitting"; Hsu et al., arXiv:1909.06335 (Dirichlet).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.random.streams import stream
from fedsmoo.data.division.draws import checked_labels, client_sizes, draw_samples, lists_by_owner
from fedsmoo.data.division.inputs import Noise, Rotation
from fedsmoo.data.division.rule import Partition, positive_option
from fedsmoo.data.division.shares import ClassWise, Quantity, Shards, Sizes, numbers_in
from fedsmoo.data.division.transport import transport

__all__ = ["PARTITIONS", "Partition", "from_rule", "parse", "to_rule"]

_REPLACEMENT = "clients draw independently of each other, so that they may share samples"
_REFILL = "with replacement: deal each class from a shuffled deck that is refilled when empty (the authors' code)"


@dataclass(frozen=True)
class IID(Partition):
    """Every client draws from all samples alike."""

    label: ClassVar[str] = "iid"
    in_settings: ClassVar[bool] = True
    replacement: bool = field(default=False, metadata={"help": _REPLACEMENT})

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        sizes = client_sizes(len(labels), clients, self.replacement)
        rng = stream(seed, "partition")
        if self.replacement:
            samples = rng.integers(len(labels), size=int(sizes.sum()))
        else:
            samples = rng.permutation(len(labels))
        return lists_by_owner(samples, np.repeat(np.arange(clients), sizes), clients)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Every client draws its class proportions from a Dirichlet distribution; the smaller u, the more uneven."""

    label: ClassVar[str] = "dirichlet"
    in_settings: ClassVar[bool] = True
    u: float = positive_option(0.1, "concentration: 0.1 is very uneven, 100 almost iid")
    replacement: bool = field(default=True, metadata={"help": _REPLACEMENT})
    refill: bool = field(default=False, metadata={"help": _REFILL})

    @property
    def name(self) -> str:
        return f"{self.label}-{self.u:g}"

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        sizes = client_sizes(len(labels), clients, self.replacement)
        rng = stream(seed, "partition")
        prior = rng.dirichlet(np.full(classes, self.u), size=clients)
        bad = ~np.isfinite(prior).all(1)  # a tiny u underflows; its limit is a single class
        prior[bad] = np.eye(classes)[rng.integers(classes, size=int(bad.sum()))]
        return draw_samples(rng, labels, prior, sizes, self.replacement, self.refill)


@dataclass(frozen=True)
class Pathological(Partition):
    """Every client draws from c random classes only, each alike."""

    label: ClassVar[str] = "pathological"
    in_settings: ClassVar[bool] = True
    c: int = positive_option(3, "number of classes that a client draws from")
    replacement: bool = field(default=True, metadata={"help": _REPLACEMENT})
    refill: bool = field(default=False, metadata={"help": _REFILL})

    def split(self, labels: np.ndarray, classes: int, clients: int, seed: int) -> list[np.ndarray]:
        sizes = client_sizes(len(labels), clients, self.replacement)
        present = np.unique(checked_labels(labels, classes))  # no client can draw from a class without samples
        if self.c > present.size:
            raise FedsmooError(
                f"partition pathological: c is {self.c}, but the training labels have only {present.size} classes; "
                f"choose c between 1 and {present.size}"
            )
        rng = stream(seed, "partition")
        # Without replacement, clients in blocks share one shuffle of the classes: each client's classes are as random
        # as before, but all classes are wanted about equally often, so that few clients find theirs used up.
        block = 1 if self.replacement else present.size // self.c
        shuffles = rng.permuted(np.tile(present, (-(-clients // block), 1)), axis=1)
        chosen = shuffles[:, : block * self.c].reshape(-1, self.c)[:clients]
        prior = np.zeros((clients, classes))
        np.put_along_axis(prior, chosen, 1.0 / self.c, axis=1)
        counts = None
        if not self.replacement:
            counts = transport(prior > 0, sizes, np.bincount(labels, minlength=classes))
        return draw_samples(rng, labels, prior, sizes, self.replacement, self.refill, counts)


PARTITIONS: dict[str, type[Partition]] = {
    kind.label: kind for kind in (IID, Dirichlet, Pathological, ClassWise, Quantity, Shards, Sizes, Noise, Rotation)
}


def parse(text: str, **options: Any) -> Partition:
    """Return the partition with a short name; options such as ``replacement=False`` are set on it.

    >>> parse("dirichlet-0.6", replacement=False)
    Dirichlet(u=0.6, replacement=False)
    """
    kind, _, number = text.strip().lower().partition("-")
    if kind not in PARTITIONS:
        raise unknown("partition", text, [kind().name for kind in PARTITIONS.values()])
    if number:
        parameter = fields(PARTITIONS[kind])[0]
        kinds: dict[str, Callable[[str], Any]] = {"float": float, "int": int, "tuple[int, ...]": numbers_in}
        convert = kinds.get(str(parameter.type))
        if convert is None:
            raise FedsmooError(f"partition {text!r}: {kind} takes no number; write just {kind!r}")
        try:
            options = {parameter.name: convert(number), **options}
        except ValueError:
            raise FedsmooError(
                f"partition {text!r}: {number!r} is not a value for {parameter.name}; write for example "
                f"'{PARTITIONS[kind]().name}'"
            ) from None
    return from_rule({"name": kind, **options})


def to_rule(partition: Partition) -> dict[str, Any]:
    """Return a partition as plain values, for files; ``from_rule`` reads it back."""
    return partition.to_rule()


def from_rule(rule: dict[str, Any]) -> Partition:
    """Return the partition that :meth:`Partition.to_rule` described; refuse names and options that nobody has."""
    values = dict(rule)
    name = str(values.pop("name", ""))
    if name not in PARTITIONS:
        raise unknown("partition", name, PARTITIONS)
    known = [f.name for f in fields(PARTITIONS[name])]
    for key in values:
        if key not in known:
            raise unknown(f"option of partition {name}", key, known)
    return PARTITIONS[name](**values)
