"""Say in old result files what was not recorded when they were made; curves and numbers stay as they are.

Some runs were started by a program of which only the last word was kept as the command (``fedsmoo 352``), and some
benchmarks kept no commit. What is not known is not made up: such files say "not recorded". Running it again changes
nothing.

PYTHONPATH=src python benchmarks/mend_results.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fedsmoo.runs.storage.files import write_durably
from fedsmoo.sweeps.results import FORMAT, in_lines

RESULTS = Path(__file__).parents[1] / "results"
NUMBER = re.compile(r"fedsmoo \d+")
COMMAND = "command not recorded; the config above is whole: fedsmoo run CONFIG"
COMMIT = "not recorded"


def mended(value: dict[str, Any]) -> dict[str, Any]:
    """A run's result with a true command and commit.

    >>> mended({"command": "fedsmoo 352", "commit": "abc"})["command"]
    'command not recorded; the config above is whole: fedsmoo run CONFIG'
    """
    out = {**value, "commit": value.get("commit") or COMMIT}
    return {**out, "command": COMMAND} if NUMBER.fullmatch(str(value.get("command"))) else out


def mend(path: Path) -> bool:
    """Mend one file; whether that changed it."""
    old = path.read_text(encoding="utf-8")
    value = json.loads(old)
    if not isinstance(value, dict):
        return False  # a list of measurements, each with its own commit
    if value.get("format") == FORMAT:
        new = in_lines(mended(value))
        assert json.loads(new)["curve"] == value["curve"], path
    elif value.get("commit"):
        return False
    else:  # a benchmark's file in a layout of its own: one more field in front
        space = re.match(r"\{(\s*)", old)
        assert space is not None, path
        new = f'{{{space[1]}"commit": "{COMMIT}",{space[1] or " "}' + old[space.end() :]
        assert json.loads(new) == {"commit": COMMIT, **value}, path
    if new != old:
        write_durably(path, new)
    return new != old


if __name__ == "__main__":
    files = sorted({*RESULTS.rglob("*-seed*.json"), *RESULTS.glob("*.json"), *(RESULTS / "gpu").glob("*.json")})
    print(f"{sum(mend(path) for path in files)} of {len(files)} files changed")
