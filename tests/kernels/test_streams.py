"""Fork and join of side streams, without a device: who waits for whom, in order."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from fedsmoo.kernels.streams import SideStream


@pytest.fixture
def waits(monkeypatch):
    """What streams wait for, as pairs of names; the current stream is ``main``."""
    seen = []

    def stream(name):
        return SimpleNamespace(name=name, device="cuda:0", wait_stream=lambda other: seen.append((name, other.name)))

    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: stream("side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream("main"))
    monkeypatch.setattr(torch.cuda, "stream", lambda other: nullcontext())
    return seen


def test_a_stream_waits_for_what_was_given_before_and_is_waited_for_once(waits):
    side = SideStream(torch.device("cuda"), True)
    side.join()  # nothing was begun: a captured graph has no such stream
    assert waits == []
    with side.beside():
        pass
    with side.beside():
        pass
    side.join()
    side.join()
    assert waits == [("side", "main"), ("side", "main"), ("main", "side")]


@pytest.mark.parametrize(("device", "apart"), [("cpu", True), ("cuda", False)])
def test_without_a_stream_of_its_own_all_is_in_order(waits, device, apart):
    side = SideStream(torch.device(device), apart)
    with side.beside():
        pass
    side.join()
    assert waits == []
