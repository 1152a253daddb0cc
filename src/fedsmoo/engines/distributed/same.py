"""Refuse a job whose ranks do not have the same: other samples on one of them would change the result unnoticed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core import Algorithm, FedsmooError, Schedule
from fedsmoo.engines.contract import RoundInputs, Setup

Facts = dict[str, Any]


def facts_of(setup: Setup, inputs: RoundInputs) -> Facts:
    """Return in words and hashes what every rank must have alike before the first round that it trains in."""
    task, rule = setup.task, setup.rule
    return {
        "PyTorch": torch.__version__,
        "round": inputs.number + 1,
        "method": method(setup.algorithm),
        "settings": str((rule, inputs.lr, inputs.share, task.dtype, task.precision, task.augment)),
        "samples": task.data.fingerprint.order,
        "cohort": str((inputs.clients, inputs.weights)),
        "batches": digest(*map(torch.from_numpy, (inputs.plan.index, inputs.plan.count))),
        "model": digest(*(v for _, v in inputs.down.items())),
    }


def method(algorithm: Algorithm) -> str:
    """Return a method with those options that are plain values or schedules, and the same of what it is around."""
    told = {n: method(v) if isinstance(v, Algorithm) else v for n, v in algorithm.options().items()}
    return (
        f"{algorithm.label} { ({n: v for n, v in told.items() if isinstance(v, bool | int | float | str | Schedule)}) }"
    )


def digest(*tensors: Tensor) -> str:
    """Return the SHA-256 of tensors: their types, shapes and bytes."""
    found = hashlib.sha256()
    for v in tensors:
        found.update(f"{v.dtype}{tuple(v.shape)}".encode())
        found.update(v.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def refuse_others(each: Sequence[Facts]) -> None:
    """Refuse ranks that do not have what rank 0 has; all of them refuse with the same words.

    Raises:
        FedsmooError: naming the ranks, and what is not the same.
    """
    first = each[0]
    other = {r: [n for n in first if facts.get(n) != first[n]] for r, facts in enumerate(each)}
    if not any(other.values()):
        return
    said = "; ".join(
        f"rank {r} has another {', '.join(named(n, each[r], first) for n in names)}"
        for r, names in other.items()
        if names
    )
    raise FedsmooError(
        f"the ranks of this job do not have the same: {said} than rank 0. Every machine needs the same data, files, "
        "settings, run folder and versions"
    )


def named(name: str, mine: Facts, first: Facts) -> str:
    """Return what differs, with both values where a person can read them."""
    return f"{name} ({mine.get(name)}, not {first[name]})" if name in ("PyTorch", "round") else name
