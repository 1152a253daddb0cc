"""The command line called in this process, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedsmoo.cli import main

TINY = [
    "--model", "softmax", "--clients", "4", "--cohort", "2", "--rounds", "2", "--local-steps", "1",
    "--engine", "serial",
]  # fmt: skip


def otherwise(words: list[str], *given: str) -> list[str]:
    """Return the words of a command with some flags given otherwise: one that is given twice is refused."""
    for flag in given[::2]:
        at = words.index(flag) if flag in words and flag != "--set" else len(words)
        words = [*words[:at], *words[at + 2 :]]
    return [*words, *given]


def tiny(*given: str) -> list[str]:
    """Return ``TINY`` with some flags given otherwise."""
    return otherwise(TINY, *given)


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run ``fedsmoo`` with some arguments in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def calling(*arguments: str) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        code = ended.value.code
        printed = capsys.readouterr()
        return Answer(code if isinstance(code, int) else int(code is not None), printed.out, printed.err)

    return calling
