"""docs/audit.md: the options that it names exist, and every claim names a place."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedsmoo.runs.build import make_algorithm
from fedsmoo.runs.settings.merge import make_config
from fedsmoo.sweeps.bases import read_sweep

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "audit.md").read_text()
ROWS = [
    [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in PAGE.splitlines() if line.startswith("| [`")
]
OPTIONS = [words for row in ROWS for words in re.findall(r"`(--[^`]+)`", row[2])]


def typed(word: str) -> Any:
    """A value as TOML has it; what is none is text."""
    try:
        return tomllib.loads(f"x = {word}")["x"]
    except tomllib.TOMLDecodeError:
        return word


@pytest.mark.parametrize("words", OPTIONS)
def test_an_option_exists(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # one method lies in a file of its own
    settings: dict[str, Any] = {}
    flags = iter(shlex.split(words))
    for flag in flags:
        name, value = flag.removeprefix("--").replace("-", "_"), next(flags)
        if name == "set":
            key, _, value = value.partition("=")
            settings.setdefault("algorithm_options", {})[key] = typed(value)
        else:
            settings[name] = typed(value)
    config = make_config({"clients": 20, "cohort": 5, **settings})
    method = make_algorithm(config.algorithm, config.algorithm_options)
    for key, value in settings.get("algorithm_options", {}).items():
        assert str(getattr(method, key)) == str(value) or getattr(method, key) == pytest.approx(value)
    for name in settings:
        assert hasattr(config, name)


def test_every_row_names_a_line_or_a_file() -> None:
    assert len(ROWS) >= 25
    for where, _, here in ROWS:
        places = re.findall(r"\[`([\w/.]*)(?::(\d+)(?:-(\d+))?)?`\]\(https://github.com/[\w/-]+/blob/(\S+?)\)", where)
        assert len(places) == where.count("](")
        for file, first, last, place in places:
            path, _, lines = place.partition("/")[2].partition("#")
            assert path.endswith(file)
            assert lines == (f"L{first}" + (f"-L{last}" if last else "") if first else "")
            assert int(last or 10**6) > int(first or 0)
        assert here
    assert (ROOT / "experiments/released/fedwmsam.toml").is_file()
    defaults = read_sweep(ROOT / "experiments/released/fedwmsam.toml").cells[0].config
    assert (defaults.rounds, defaults.local_epochs, defaults.batch_size, defaults.lr_decay) == (500, 5, 50, 0.998)


def test_every_repository_names_its_commit() -> None:
    *sections, small = PAGE.split("\n## ")[1:]
    assert small.startswith("On a small problem")
    assert len(sections) == 7
    for section in sections:
        assert re.search(r"\]\(https://github.com/[\w-]+/[\w-]+\), `[0-9a-f]{7}`", section), section[:40]
