"""Pages that show a file of the repository: code, a configuration, a notebook, or what is in a folder."""

from __future__ import annotations

import json
from pathlib import Path

from links import ROOT

LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".json": "json",
    ".sh": "bash",
    ".yml": "yaml",
    ".cff": "yaml",
    "": "bash",
}
MOST = 60_000  # characters of a file that a page shows


def source_page(path: str) -> str:
    """Return the page of a file or folder, as Markdown."""
    file = ROOT / path
    if file.is_dir():
        return folder(path)
    if file.suffix == ".ipynb":
        return notebook(file)
    text = file.read_text(encoding="utf-8")
    if len(text) > MOST:
        return f"# {path}\n\nThe file holds {len(text):,} characters; it lies in the repository.\n"
    return f"---\nhide: [toc]\n---\n\n# {path}\n\n{fenced(text, LANGUAGES.get(file.suffix, 'text'))}\n"


def fenced(text: str, language: str) -> str:
    """Return a block of code, whatever fences its text holds."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def folder(path: str) -> str:
    """Return the page of a folder: the names of its files, with the first line of what they say of themselves."""
    rows = [f"| `{f.name}` | {about(f)} |" for f in sorted((ROOT / path).iterdir()) if f.is_file()]
    return "\n".join([f"# {path}/", "", "| file | |", "|---|---|", *rows, ""])


def about(file: Path) -> str:
    """Return the first line of a script's docstring; nothing of other files."""
    if file.suffix != ".py":
        return ""
    first = file.read_text(encoding="utf-8").lstrip().partition("\n")[0]
    return first.strip('"').replace("|", "\\|") if first.startswith('"""') else ""


def notebook(file: Path) -> str:
    """Return a notebook's cells as a page; it is kept without outputs."""
    parts = []
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else fenced(text, "python"))
    note = f"*The notebook `{file.relative_to(ROOT)}` of the repository; the tests run it.*"
    title, *rest = parts
    return "\n\n".join([title, note, *rest]) + "\n"
