"""Settings of all tests here: nothing calls home, and Flower believes that this process runs a task."""

from __future__ import annotations

import pytest

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    for name, value in OFFLINE.items():
        monkeypatch.setenv(name, value)
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
