"""Tables inside documents, between markers: made again from results, or checked to be what the results say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from fedsmoo.core import FedsmooError
from fedsmoo.core.untrusted import to_stderr
from fedsmoo.paper.cells import Found
from fedsmoo.paper.render import render
from fedsmoo.paper.reproduce import RESULTS, build, existing, homes
from fedsmoo.paper.selection import Selection
from fedsmoo.runs.storage.files import reason, remove_leftovers, write_together
from fedsmoo.sweeps.results import Note, collect

MARKED = re.compile(r"(<!-- table: (?P<arguments>.*?) -->\n).*?(<!-- /table -->)", re.DOTALL)


def update(
    files: Sequence[str | Path], results: str | Path | None = None, check: bool = False, note: Note = to_stderr
) -> list[Path]:
    """Rewrite the marked tables of documents from a folder of results, all or none; returns the files that changed.

    Args:
        files: documents with tables between ``<!-- table: NAME -->`` and ``<!-- /table -->``.
        results: folder of result files (default: ``results``).
        check: change nothing.
        note: called with a line that a person should know.

    Raises:
        FedsmooError: if a document cannot be read or written or has no marker, so that none is changed; with
            ``check``, if a table is out of date.
    """
    files = [files] if isinstance(files, str | Path) else files
    if not isinstance(files, Sequence) or not files:
        raise FedsmooError("update: which files? such as 'fedsmoo table --update README.md'")
    # All or nothing: a document does not say what it lacks.
    found = collect((), homes(existing(Path(results or RESULTS))), note, whole=True)
    old = {Path(path): marked(Path(path)) for path in files}
    for path in () if check else old:
        remove_leftovers(path.resolve())
    stale = {path: new for path, text in old.items() if (new := updated(text, found)) != text}
    names = " ".join(map(str, stale))
    if check and stale:
        raise FedsmooError(f"tables out of date in {', '.join(map(str, stale))}: run 'fedsmoo table --update {names}'")
    try:
        write_together({path.resolve(): text for path, text in stale.items()})
    except OSError as e:
        raise FedsmooError(f"cannot write {names}: {reason(e)}; no file was changed") from e
    return list(stale)


def updated(text: str, found: Found) -> str:
    """Return a document with every marked table made again."""

    def fresh(match: re.Match[str]) -> str:
        selection = Selection.parse(match["arguments"])
        sweep = selection.over_measured_seeds(found)  # as ``fedsmoo table NAME --no-run`` has them
        return match[1] + render(build(sweep, found, selection.compact), "markdown") + match[3]

    return MARKED.sub(fresh, text)


def marked(path: Path) -> str:
    """Read a document; raises a ``FedsmooError`` if it has no table to update."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as e:
        raise FedsmooError(f"cannot read {path}: {e.strerror}") from e
    if not MARKED.search(text):
        raise FedsmooError(
            f"{path} has no marker: a table goes between the lines '<!-- table: accuracy -->' and '<!-- /table -->'"
        )
    return text
