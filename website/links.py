"""Where a file of the repository is found on the site, and links rewritten from the one to the other.

Documents link to each other, to code and to results as one does on GitHub, relative to where they lie. On the site
every file that a document links to is a page: those of docs/ under their own names, some others by PAGES, and code,
notebooks and folders below ``source/``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Documents outside of docs/ that are pages of the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "GOVERNANCE.md": "governance.md",
    "results/README.md": "results-files.md",
    "experiments/README.md": "experiment-files.md",
}
FROM_PAGES = {page: path for path, page in PAGES.items()}
CODE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$|(?<!`)(`+)(?!`)[^\n]*?(?:\n[^\n]+?)*?(?<!`)\3(?!`)", re.S | re.M)
LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=(?:\s+\"[^\"]*\")?\))|(?<=\bsrc=\")([^\"]+)|(?<=\bsrcset=\")([^\"]+)")


def page_of(path: str) -> str | None:
    """Return the page on which a file or folder of the repository is shown, or None where there is no such file."""
    if path in PAGES:
        return PAGES[path] if (ROOT / path).is_file() else None
    if not (ROOT / path).exists():
        return None
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return posixpath.join(inside, "README.md") if (ROOT / path).is_dir() else inside
    if (ROOT / path).is_dir():
        return PAGES.get(f"{path}/README.md", f"source/{path}/index.md")
    return f"source/{path}.md"


def path_of(page: str) -> str:
    """Return the file of the repository that a page shows."""
    if page.startswith("source/"):
        return page.removeprefix("source/").removesuffix(".md")
    return FROM_PAGES.get(page, f"docs/{page}")


def outside(text: str, path: str) -> Iterator[tuple[re.Match[str], str, str]]:
    """Yield the links of a document to other files of the repository: the match, the file's path and the anchor."""
    code = [m.span() for m in CODE.finditer(text)]
    for match in LINK.finditer(text):
        target, sharp, anchor = match[0].partition("#")
        if not target or re.match(r"[a-z+]+:|/", target) or any(a <= match.start() < b for a, b in code):
            continue
        yield match, posixpath.normpath(posixpath.join(posixpath.dirname(path), target)), sharp + anchor


def rewritten(text: str, page: str) -> str:
    """Return a document's text with its links as they are on the site; what leads nowhere stays, and is warned of."""
    parts, at = [], 0
    for match, path, anchor in outside(text, path_of(page)):
        to = page_of(path)
        if to is not None:
            link = posixpath.relpath(to, posixpath.dirname(page) or ".")
            parts += [text[at : match.start()], link + anchor]
            at = match.end()
    return "".join([*parts, text[at:]])


def sources(read: Callable[[str], str], paths: list[str]) -> list[str]:
    """Return the files and folders that documents link to and that are no documents themselves."""
    found = {
        path
        for document in paths
        for _, path, _ in outside(read(document), document)
        if (page_of(path) or "").startswith("source/")
    }
    return sorted(found)
