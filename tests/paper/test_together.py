"""``table --update`` of several documents changes all of them or none, whatever file operation fails."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forked
import pytest

import fedsmoo
from fedsmoo.core.errors import FedsmooError

MARK = "# {}\n<!-- table: accuracy --methods fedavg --columns cifar10 -->\nold\n<!-- /table -->\n"
NAMES = ("a.md", "b.md", "c.md")


def documents(folder: Path) -> list[Path]:
    """Three documents with an old table."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        (folder / name).write_text(MARK.format(name))
    return [folder / name for name in NAMES]


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.is_file()}


class Failing:
    """Counts calls that change files, and lets one of them fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, how: Callable[[], Any]) -> None:
        self.at, self.how, self.calls = at, how, 0
        for module, name in ((os, "replace"), (os, "fsync"), (os, "link"), (Path, "open")):
            monkeypatch.setattr(module, name, self.counted(getattr(module, name)))

    def counted(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            changes = inner.__name__ != "open" or "w" in str(args[1:])
            self.calls += changes
            if changes and self.calls == self.at:
                self.how()
            return inner(*args, **kwargs)

        return call


def full() -> None:
    raise OSError(28, "No space left on device")


def test_all_documents_or_none_when_an_operation_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = contents(documents(tmp_path)[0].parent)
    fedsmoo.paper.update(documents(tmp_path), tmp_path / "results")
    new = contents(tmp_path)
    assert len(new) == 3
    assert all(new[name] != old[name] for name in NAMES)
    documents(tmp_path)
    with monkeypatch.context() as patch:
        whole = Failing(patch, 0, full)
        fedsmoo.paper.update([tmp_path / name for name in NAMES], tmp_path / "results")
    assert whole.calls >= 13  # three files opened, flushed, linked and renamed, and their folder
    outcomes = []
    for at in range(1, whole.calls + 1):
        documents(tmp_path)
        said = ""
        with monkeypatch.context() as patch:
            Failing(patch, at, full)
            try:
                fedsmoo.paper.update([tmp_path / name for name in NAMES], tmp_path / "results")
            except FedsmooError as e:
                said = str(e)
        outcomes.append(contents(tmp_path))
        assert outcomes[-1] == (old if "No space left on device; no file was changed" in said else new), at
    assert outcomes.count(new) == 3  # a link that fails is a copy instead


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import pytest
from paper.test_together import Failing, NAMES
import fedsmoo
with pytest.MonkeyPatch.context() as patch:
    Failing(patch, {at}, lambda: os.kill(os.getpid(), 9))
    fedsmoo.paper.update(NAMES, "results")
"""


@pytest.mark.parametrize("at", [8, 12])  # while they are written, and between two renames
def test_a_killed_update_leaves_whole_files_and_the_next_one_finishes_it(tmp_path: Path, at: int) -> None:
    old = contents(documents(tmp_path / "done")[0].parent)
    fedsmoo.paper.update([tmp_path / "done" / name for name in NAMES], tmp_path / "done" / "results")
    new = contents(tmp_path / "done")
    cut = tmp_path / "cut"
    documents(cut)
    code = KILLED.format(tests=str(Path(__file__).parents[1]), at=at)
    killed = forked.run([sys.executable, "-c", code], cwd=cut, env={**os.environ, "COLUMNS": "80"})
    assert killed.returncode == -signal.SIGKILL
    left = contents(cut)
    assert all(left[name] in (old[name], new[name]) for name in NAMES)
    others = {name: text for name, text in left.items() if name not in NAMES}
    assert others
    for name in others:
        os.utime(cut / name, (0, 0))  # two minutes later
    alive = cut / f".a.md.{os.getppid()}.tmp"  # of a process that is still at it
    alive.write_text("half")
    fedsmoo.paper.update([cut / name for name in NAMES], cut / "results")
    assert contents(cut) == {**new, alive.name: "half"}
    shutil.rmtree(cut)
