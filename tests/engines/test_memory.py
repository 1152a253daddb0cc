"""What counts as free memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fedsmoo.engines.client_state import memory

MEMINFO = """MemTotal:        8000000 kB
MemFree:          100000 kB
MemAvailable:    6000000 kB
Buffers:           20000 kB
"""


def test_memory_that_the_system_can_give_back_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of a machine's memory holds files that were read once; it is given to whoever asks."""
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert memory.available_bytes(torch.device("cpu")) == 6_000_000 * 1024


@pytest.mark.parametrize("text", [None, "MemFree:   100000 kB\n", "MemAvailable:\n", "MemAvailable: much kB\n"])
def test_a_system_that_does_not_say_is_asked_otherwise(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_AVPHYS_PAGES": 7, "SC_PAGE_SIZE": 4096}[name])
    assert memory.available_bytes(torch.device("cpu")) == 7 * 4096
