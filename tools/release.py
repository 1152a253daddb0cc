"""Tag a release, once everything agrees on its version: ``make release VERSION=0.1.0``.

    python tools/release.py 0.1.0 --dry-run      # say what is in the way, and change nothing

Refused: a tree with changes; a version that ``version.py``, ``CITATION.cff`` or the topmost heading of ``CHANGELOG.md``
does not have; a heading without a date; a tag that exists. The packages are built and tried (``tools/package.py``)
before the tag is made. Nothing is pushed: the last line says how.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## (?P<version>\S+) \((?P<date>[^)]*)\)$", re.M)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def git(root: Path, *words: str) -> str:
    """Return what a git command prints."""
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()


def headings(text: str) -> list[tuple[str, str, str]]:
    """Return version, date and lines of every release in a changelog, the newest first.

    >>> headings("# Changelog\\n\\n## 0.2.0 (2026-01-02)\\n\\n- New.\\n\\n## 0.1.0 (2025-01-01)\\n\\n- First.\\n")
    [('0.2.0', '2026-01-02', '- New.'), ('0.1.0', '2025-01-01', '- First.')]
    """
    found = list(HEADING.finditer(text))
    ends = [m.start() for m in found[1:]] + [len(text)]
    return [(m["version"], m["date"], text[m.end() : end].strip()) for m, end in zip(found, ends, strict=True)]


def in_the_way(root: Path, version: str, tagged: bool = False) -> list[str]:
    """Return all that forbids to release a version, a line each that says what to do; ``tagged``: it has its tag."""
    lines = []
    if changed := git(root, "status", "--porcelain"):
        lines.append(f"the tree has changes ({len(changed.splitlines())} files): commit or stash them")
    code = re.search(r'__version__ = "(.*)"', (root / "src/fedsmoo/version.py").read_text(encoding="utf-8"))
    if code is None or code[1] != version:
        lines.append(f"src/fedsmoo/version.py says {code[1] if code else 'nothing'}: write {version} there")
    releases = headings((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    newest, date, notes = releases[0] if releases else ("no release", "", "")
    if newest != version:
        lines.append(
            f"the topmost heading of CHANGELOG.md is of {newest}: begin one with '## {version} (YEAR-MONTH-DAY)'"
        )
    elif not DATE.fullmatch(date):
        lines.append(f"CHANGELOG.md calls {version} {date!r}: write the day of the release, such as (2026-01-31)")
    elif not notes:
        lines.append(f"CHANGELOG.md says nothing of {version}: write what changed for users")
    cited = re.search(r"^version: (.*)$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    if cited is None or cited[1].strip("\"'") != version:
        lines.append(f"CITATION.cff cites version {cited[1] if cited else 'none'}: write {version} there")
    if tagged:
        if git(root, "tag", "--list", "--points-at", "HEAD", f"v{version}") != f"v{version}":
            lines.append(f"the tag v{version} is not here: make it with 'make release VERSION={version}'")
    elif git(root, "tag", "--list", f"v{version}"):
        lines.append(f"the tag v{version} exists: a release is never made twice; choose the next version")
    return lines


def main() -> None:
    """Check, build, try and tag; or say what is in the way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="such as 0.1.0")
    parser.add_argument("--dry-run", action="store_true", help="only say what is in the way")
    parser.add_argument("--tagged", action="store_true", help="check a release that has its tag, and stop")
    parser.add_argument("--notes", action="store_true", help="print what CHANGELOG.md says of the version, and stop")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.notes:
        said = {v: notes for v, _, notes in headings((given.root / "CHANGELOG.md").read_text(encoding="utf-8"))}
        if given.version not in said:
            sys.exit(f"release: CHANGELOG.md has no heading of {given.version}")
        print(said[given.version])
        return
    if lines := in_the_way(given.root, given.version, given.tagged):
        sys.exit("\n".join(f"release: {line}" for line in lines))
    if given.dry_run or given.tagged:
        print(f"nothing is in the way of {given.version}")
        return
    subprocess.run([sys.executable, str(given.root / "tools" / "package.py")], check=True)
    notes = headings((given.root / "CHANGELOG.md").read_text(encoding="utf-8"))[0][2]
    git(given.root, "tag", "--annotate", f"v{given.version}", "--message", f"fedsmoo {given.version}\n\n{notes}")
    print(f"tagged v{given.version}; publish it with: git push origin v{given.version}")


if __name__ == "__main__":
    main()
