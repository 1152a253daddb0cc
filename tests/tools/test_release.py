"""A release is refused unless everything agrees on its version; CITATION.cff keeps to its format."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedsmoo

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tools" / "release.py"
CHANGELOG = "# Changelog\n\n## 1.2.3 (2026-01-31)\n\n- New.\n\n## 1.2.2 (2026-01-01)\n\n- Old.\n"


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small checkout that could be released as 1.2.3."""
    (tmp_path / "src/fedsmoo").mkdir(parents=True)
    (tmp_path / "src/fedsmoo/version.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.3\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "All.")
    return tmp_path


def release(root: Path, version: str = "1.2.3", how: str = "--dry-run") -> tuple[int, str]:
    words = [sys.executable, str(SCRIPT), version, how, "--root", str(root)]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_tree_whose_files_agree_can_be_released(checkout: Path) -> None:
    assert release(checkout) == (0, "nothing is in the way of 1.2.3\n")


WRONG = {
    "a changed file": ("CHANGELOG.md", CHANGELOG.replace("New.", "Newer."), "the tree has changes (1 files)"),
    "a new file": ("notes.txt", "", "the tree has changes (1 files)"),
    "another version in the code": ("src/fedsmoo/version.py", '__version__ = "1.2.4"\n', "version.py says 1.2.4"),
    "no heading": ("CHANGELOG.md", CHANGELOG.replace("1.2.3", "1.3.0"), "topmost heading of CHANGELOG.md is of 1.3.0"),
    "no date": ("CHANGELOG.md", CHANGELOG.replace("2026-01-31", "unreleased"), "calls 1.2.3 'unreleased'"),
    "nothing said": ("CHANGELOG.md", CHANGELOG.replace("- New.\n", ""), "CHANGELOG.md says nothing of 1.2.3"),
    "another citation": ("CITATION.cff", "version: 1.2.2\n", "CITATION.cff cites version 1.2.2"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_disagrees_is_refused(case: str, checkout: Path) -> None:
    name, text, expected = WRONG[case]
    (checkout / name).write_text(text)
    if "tree" not in expected:
        git(checkout, "commit", "--all", "--quiet", "--message", "Wrong.")
    code, said = release(checkout)
    assert code == 1
    assert expected in said
    assert len(said.splitlines()) == 1


def test_a_tag_that_exists_is_refused(checkout: Path) -> None:
    git(checkout, "tag", "v1.2.3")
    assert release(checkout) == (
        1, "release: the tag v1.2.3 exists: a release is never made twice; choose the next version\n"
    )  # fmt: skip


def test_a_release_that_has_its_tag_is_checked_again(checkout: Path) -> None:
    assert release(checkout, how="--tagged")[0] == 1
    git(checkout, "tag", "v1.2.3")
    assert release(checkout, how="--tagged") == (0, "nothing is in the way of 1.2.3\n")
    git(checkout, "commit", "--allow-empty", "--quiet", "--message", "Later.")
    assert "the tag v1.2.3 is not here" in release(checkout, how="--tagged")[1]


def test_the_notes_of_a_release_are_its_part_of_the_changelog(checkout: Path) -> None:
    assert release(checkout, "1.2.2", "--notes") == (0, "- Old.\n")
    assert release(checkout, "1.2.4", "--notes") == (1, "release: CHANGELOG.md has no heading of 1.2.4\n")


def test_all_that_is_in_the_way_is_said_at_once(checkout: Path) -> None:
    (checkout / "new").touch()
    code, said = release(checkout, "1.3.0")
    assert (code, len(said.splitlines())) == (1, 4)


def test_every_file_names_this_version() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == fedsmoo.__version__
    newest = re.search(r"^## (\S+) ", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == fedsmoo.__version__


# The Citation File Format 1.2.0: what must be there, and which words a type may be.
REQUIRED = {"authors", "cff-version", "message", "title"}
KEYS = REQUIRED | {"abstract", "date-released", "doi", "identifiers", "keywords", "license", "preferred-citation",
                   "references", "repository-code", "type", "url", "version"}  # fmt: skip
PERSON = {"given-names", "family-names", "name-particle", "name-suffix", "affiliation", "orcid", "email", "alias"}
ENTITY = {"name", "website", "email", "orcid"}
REFERENCE = {"type", "title", "authors", "collection-title", "year", "url", "doi", "conference", "pages", "volume"}
KINDS = {"article", "book", "conference-paper", "proceedings", "report", "software", "thesis"}


def wrong_in_citation(cff: dict[str, Any]) -> list[str]:
    """List what of a citation file the format does not allow."""
    wrong = [f"no {key}" for key in REQUIRED - cff.keys()] + [f"unknown {key}" for key in cff.keys() - KEYS]
    wrong += [] if cff.get("cff-version") == "1.2.0" and cff.get("type") in ("software", "dataset") else ["kind"]
    for work in (cff, *cff.get("references", [])):
        for author in work.get("authors", []):
            wrong += [] if author.keys() <= PERSON or ("name" in author and author.keys() <= ENTITY) else ["author"]
    for work in cff.get("references", []):
        wrong += [f"no {key}" for key in {"type", "title", "authors"} - work.keys()]
        wrong += [f"unknown {key}" for key in work.keys() - REFERENCE]
        wrong += [] if work.get("type") in KINDS and isinstance(work.get("year"), int) else ["reference"]
    return wrong + [key for key in ("title", "message", "version") if not isinstance(cff.get(key), str)]


def test_the_citation_file_keeps_to_its_format() -> None:
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert wrong_in_citation(cff) == []
    for key in REQUIRED:
        assert wrong_in_citation({k: v for k, v in cff.items() if k != key})
    assert wrong_in_citation({**cff, "licence": "Apache-2.0"}) == ["unknown licence"]
    assert wrong_in_citation({**cff, "version": 0.1}) == ["version"]
    assert wrong_in_citation({**cff, "authors": [{"name": "a", "surname": "b"}]}) == ["author"]
