"""Threads that have no cores to run on: a run says so, in a line."""

import os
import warnings
from pathlib import Path

import pytest
import torch

import fedsmoo
from fedsmoo.core.errors import FedsmooWarning
from fedsmoo.engines import devices

SMALL = {"clients": 4, "cohort": 3, "rounds": 1, "local_steps": 1}


def told(model: str = "softmax", **settings: object) -> list[str]:
    """Return what a short run warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fedsmoo.simulate(model, "digits", "fedavg", **{**SMALL, **settings})
    return [str(w.message) for w in caught if issubclass(w.category, FedsmooWarning)]


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of four cores, three of them ours and all busy, whose user has said nothing of threads."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.5, 1.0, 1.0))
    monkeypatch.setattr(devices, "usable_cores", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)


@pytest.mark.usefixtures("busy")
def test_threads_that_share_operations_on_a_busy_machine_are_told_of() -> None:
    assert told() == [devices.BUSY] == told(engine="serial")
    assert told(engine="threads") == []  # each thread has clients of its own


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize("well", ["load", "asked", "one"])
def test_nothing_is_said_where_threads_do_not_wait_or_were_asked_for(
    well: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if well == "load":  # six programs on four cores: those that compute here, and a few
        monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 9.0, 9.0))
    elif well == "asked":
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
    else:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert told() == []


@pytest.mark.usefixtures("busy")
def test_more_threads_than_a_container_may_use_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    says = "4 threads on 3 cores wait for each other: OMP_NUM_THREADS=3 is faster"
    assert told() == [says] == told(engine="threads")


def test_cores_are_those_that_a_container_gives(tmp_path: Path) -> None:
    mine = len(os.sched_getaffinity(0))
    for content, expected in (("max 100000\n", mine), ("100000 100000\n", 1), ("50000 100000\n", 1),
                              (f"{(mine + 3) * 100000} 100000\n", mine)):  # fmt: skip
        (tmp_path / "cpu.max").write_text(content)
        assert devices.usable_cores(tmp_path / "cpu.max") == expected
    assert devices.usable_cores(tmp_path / "nowhere") == mine
