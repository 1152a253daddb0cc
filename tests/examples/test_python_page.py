"""What docs/python.md shows is run, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert len(blocks) == 5
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert "FedProx mu=0.1" in capsys.readouterr().out
    assert names["best"].label == "FedProx"
    assert len(names["comparison"].runs) == 3
    assert all("norm" in record.probes for record in names["watched"].history)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept"]
