"""Notes every call of a ``fedsmoo run`` with one round: ``python trace.py FOLDER``; PYTHONPATH says whose code.

Writes ``FOLDER/trace.json``: the walk as far as the first round's record, a list of ``[depth, module, function]``, one
for each call of a function of the package, in order; ``depth`` counts the package's own frames around it, so that the
caller of a call is the last one before it that is less deep. ``round`` is the place in it where the first round starts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

ROUND = ("Simulation.advance",)  # the functions, at any commit, that are one round


class Walk:
    """A profile function that notes the package's calls until the metrics of a run have their first line."""

    def __init__(self, package: Path, metrics: Path) -> None:
        self.prefix, self.metrics = f"{package}/", metrics
        self.calls: list[tuple[int, str, str]] = []
        self.depth, self.round = 0, -1
        self.loading = 0  # modules that are being imported: what they do meanwhile is nobody's walk

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self.prefix):
            return
        if code.co_name == "<module>":
            self.loading += 1 if event == "call" else -1
        if self.loading or code.co_name == "<module>":
            return
        if event == "call":
            if code.co_qualname in ROUND and self.round < 0:
                self.round = len(self.calls)
            self.calls.append((self.depth, code.co_filename.removeprefix(self.prefix), code.co_qualname))
            self.depth += 1
            return
        self.depth -= 1
        if self.round >= 0 and self.metrics.is_file() and self.metrics.stat().st_size:
            sys.setprofile(None)


def main(folder: Path) -> None:
    import fedsmoo
    from fedsmoo.cli import main as command

    walk = Walk(Path(fedsmoo.__file__).parent, folder / "run" / "metrics.jsonl")
    sys.setprofile(walk)
    try:
        command(["run", "--rounds", "1", "--device", "cpu", "--out", str(folder / "run")])
    except SystemExit as e:
        if e.code:
            raise
    finally:
        sys.setprofile(None)
    if walk.round < 0:
        raise SystemExit(
            f"no function called {' or '.join(ROUND)}: say in benchmarks/checks/trace.py what a round is now"
        )
    (folder / "trace.json").write_text(json.dumps({"round": walk.round, "calls": walk.calls}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
