"""Whoever frees buffers on the current stream comes after all that was queued on others, also where something failed:
memory is given out again in the order of the stream that freed it, and queued steps write until they end."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fedsmoo.core import Vectors
from fedsmoo.engines.steps.capture import captured
from fedsmoo.engines.steps.replay import Recording


class Failed(Exception):
    pass


def fail() -> None:
    raise Failed


@pytest.mark.parametrize("fails", ["a step", "what is done meanwhile"])
def test_a_round_that_fails_waits_for_the_steps_it_queued(fails):
    did: list[str] = []

    def group(name: str) -> SimpleNamespace:
        def step() -> None:
            did.append(f"step of {name}")
            if fails == "a step" and did.count(f"step of {name}") == 2:
                fail()

        return SimpleNamespace(
            stream=None, fill=lambda *_: None, round=lambda steps, fill: [step] * steps,
            fork=lambda: did.append(f"fork {name}"), join=lambda: did.append(f"join {name}"),
        )  # fmt: skip

    recording = object.__new__(Recording)
    recording.groups, recording.rows = [group("a"), group("b")], SimpleNamespace(fill=lambda *_: None)  # type: ignore
    plan = SimpleNamespace(index=torch.zeros(3, 2, 1))
    with pytest.raises(Failed):
        recording.run(None, torch.zeros(2, 5), Vectors(), plan, fail)  # type: ignore[arg-type]
    assert did[:2] == ["fork a", "fork b"]
    assert did[-2:] == ["join a", "join b"]
    assert len(did) == 4 + (3 if fails == "a step" else 6)  # some steps were queued by then


def test_a_capture_that_fails_waits_for_what_it_tried(monkeypatch):
    waits: list[tuple[str, str]] = []

    def stream(name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, device="cuda:0", wait_stream=lambda other: waits.append((name, other.name)))

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream("current"))
    monkeypatch.setattr(torch.cuda, "stream", lambda other: nullcontext())
    with pytest.raises(Failed):
        captured(fail, stream("its own"), lambda: None)  # type: ignore[arg-type]
    assert waits == [("its own", "current"), ("current", "its own")]
