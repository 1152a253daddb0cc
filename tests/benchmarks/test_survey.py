"""benchmarks/README.md has every room and module, and whatever is named elsewhere is there."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
NAMED = re.compile(r"\bbenchmarks/[\w/]+\.py|(?:python3? -m|from|import) benchmarks(?:\.[a-z_]+)+")


def test_the_table_has_every_module_of_every_room_and_a_command_for_each_script() -> None:
    commands, parts, room = defaultdict(set), defaultdict(set), ""
    for line in (BENCHMARKS / "README.md").read_text().partition("|---|---|---|\n")[2].splitlines():
        first, script, _ = line.strip("| ").split(" | ") if not line.startswith("| |") else ("", *line[4:].split(" | "))
        room = first.partition("](")[2].rstrip(")") or room
        commands[room] |= set(re.findall(rf"`python -m benchmarks\.{room.replace('/', '.')}\.(\w+)", script))
        parts[room] |= set(re.findall(r"`(\w+)\.py`", script))
    found = defaultdict(set)
    for path in BENCHMARKS.rglob("*.py"):
        if path.name != "__init__.py":
            found[path.parent.relative_to(BENCHMARKS).as_posix()].add(path.stem)
    assert {r: commands[r] | parts[r] for r in commands} == found
    for name in found:
        assert not commands[name] & parts[name]
        assert (BENCHMARKS / name / "__init__.py").is_file()
        for script in commands[name]:
            assert '\nif __name__ == "__main__":\n' in (BENCHMARKS / name / f"{script}.py").read_text(), script


def test_scripts_that_documents_and_code_name_are_there() -> None:
    folders = ("benchmarks", "docs", "experiments", "src", "tests", "tools")
    texts = (p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in (".py", ".md", ".toml"))
    named: dict[str, Path] = {}
    for path in chain(texts, [ROOT / "Makefile", ROOT / "results/README.md", *ROOT.glob("*.md")]):
        named |= {words.split()[-1]: path for words in NAMED.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 60
    for name, where in named.items():
        place = ROOT / name.removesuffix(".py").replace(".", "/")
        assert place.with_suffix(".py").is_file() or place.is_dir(), f"{where}: {name}"
