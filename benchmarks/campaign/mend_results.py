"""Say in old result files what was not recorded when they were made; curves and numbers stay as they are.

Some runs were started by a program of which only the last word was kept as the command (``fedsmoo 352``), and some
benchmarks kept no commit. What is not known is not made up: such files say "not recorded". Running it again changes
nothing.

PYTHONPATH=src python -m benchmarks.campaign.mend_results
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from fedsmoo.runs.storage.files import write_durably
from fedsmoo.sweeps.results import FORMAT, json_in_lines

RESULTS = Path(__file__).parents[2] / "results"
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


def mended_text(old: str) -> str:
    """What a file should hold that holds a text.

    >>> mended_text('{"rows": []}'), mended_text('{"code": {"commit": "abc"}}')
    ('{"commit": "not recorded", "rows": []}', '{"code": {"commit": "abc"}}')
    """
    value = json.loads(old)
    if not isinstance(value, dict):
        return old  # a list of measurements, each with its own commit
    if value.get("format") == FORMAT:
        new = json_in_lines(mended(value))
        assert json.loads(new)["curve"] == value["curve"]
        return new
    if value.get("commit") or value.get("code", {}).get("commit"):  # beside what else is known of the code
        return old
    space = re.match(r"\{(\s*)", old)  # a benchmark's file in a layout of its own: one more field in front
    assert space is not None
    new = f'{{{space[1]}"commit": "{COMMIT}",{space[1] or " "}' + old[space.end() :]
    assert json.loads(new) == {"commit": COMMIT, **value}
    return new


def unmended(folder: Path = RESULTS) -> dict[Path, str]:
    """The files of a folder of results that do not say what they should, with what they should hold."""
    files = sorted({*folder.rglob("*-seed*.json"), *folder.glob("*.json"), *(folder / "gpu").glob("*.json")})
    texts = ((path, path.read_text(encoding="utf-8")) for path in files)
    return {path: new for path, old in texts if (new := mended_text(old)) != old}


if __name__ == "__main__":
    for path, text in (found := unmended()).items():
        write_durably(path, text)
    print(f"{len(found)} files changed")
