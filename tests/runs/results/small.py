"""Small runs, and when two of them are the same to the last bit."""

from __future__ import annotations

from typing import Any

import torch

import fedsmoo
from fedsmoo import Record, Result

QUICK: dict[str, Any] = {"clients": 5, "cohort": 2, "local_steps": 2, "device": "cpu", "lr_decay": 0.9}


def run(rounds: int = 4, algorithm: Any = "scaffold", **settings: Any) -> Result:
    return fedsmoo.simulate("softmax", "digits", algorithm, rounds=rounds, **{**QUICK, **settings})


def numbers(history: list[Record]) -> list[dict[str, Any]]:
    """What must be equal to the last bit: all but the seconds."""
    return [{n: v for n, v in r.values().items() if not n.startswith("seconds")} for r in history]


def same(a: Result, b: Result) -> None:
    assert numbers(a.history) == numbers(b.history)
    assert set(a.server.names()) == set(b.server.names())
    assert all(torch.equal(v, getattr(b.server, n)) for n, v in a.server.items())
    for client in range(5):
        mine, theirs = a.client_state(client), b.client_state(client)
        assert (mine is None) == (theirs is None)
        for name, v in (mine or {}).items():
            assert torch.equal(v, (theirs or {})[name])
