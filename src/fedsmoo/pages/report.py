"""Write run folders as one page: ``fedsmoo.report``, the function under the command of that name."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from fedsmoo.core.errors import as_path
from fedsmoo.pages.page import write_page
from fedsmoo.runs.storage.walk import Folders, require_runs


def report(runs: Folders, out: str | PathLike[str] = "report.html") -> Path:
    """Write a page of some runs that opens offline; returns its file.

    Args:
        runs: run folders, finished or not, or folders that hold some.
        out: the HTML file.

    Raises:
        FedsmooError: if there is no run, or the page cannot be written.
    """
    return write_page(require_runs(runs), as_path(out, "out"))
