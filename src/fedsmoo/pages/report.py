"""Write run folders as one page: ``fedsmoo.report``, the function under the command of that name."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

from fedsmoo.core.errors import as_path
from fedsmoo.pages.figures.sources import is_result
from fedsmoo.pages.page import write_page
from fedsmoo.runs.storage.walk import Folders, find_runs, require_runs


def report(runs: Folders, out: str | PathLike[str] = "report.html") -> Path:
    """Write a page of some runs that opens offline; returns its file.

    Args:
        runs: run folders, finished or not, result files, or folders that hold some.
        out: the HTML file.

    Raises:
        FedsmooError: if there is no run, or the page cannot be written.
    """
    folders, files = found_in(runs)
    return write_page(folders, as_path(out, "out"), files)


def found_in(runs: Folders) -> tuple[list[Path], list[Path]]:
    """Return run folders, and files of measured results, at or in some places; ``FedsmooError`` if there is none."""
    several = runs if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]
    paths = [as_path(path, "a run folder") for path in several]
    inside = [file for path in paths if path.is_dir() for file in sorted(path.glob("*.json"))]
    files = [file for file in (*inside, *(path for path in paths if path.is_file())) if is_result(file)]
    folders = find_runs([path for path in paths if path not in files])
    return (folders, files) if files else (require_runs(runs), [])
