"""What the site has beside the files of docs/: pages that are made, links that work on GitHub and here, formulas."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from curves import curves_page, curves_script
from links import PAGES, ROOT, page_of, path_of, rewritten, sources
from mathml import with_formulas
from methods import method_pages, nav
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from reference import commands_page, python_page, settings_page
from sources import source_page

FIGURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]*figures/(?:round|seconds)\.svg)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the methods into the navigation, and the documents of the repository's root that there are."""
    for entry in config.nav or []:
        for title, below in entry.items():
            if title == "Methods":
                below[1:1] = nav()
                below.append(families())
            elif isinstance(below, list):
                below[:] = [item for item in below if not set(item.values()) & absent()]
    return config


def absent() -> set[str]:
    """Return pages that are named in the navigation but need not be there."""
    return {page for path, page in PAGES.items() if not (ROOT / path).is_file()}


def families() -> dict[str, list[str]]:
    """Return the notes on the papers, a page for each family of methods."""
    folder = ROOT / "docs" / "algorithms"
    pages = [f"algorithms/{path.name}" for path in sorted(folder.glob("*.md")) if path.stem != "README"]
    return {"Notes, family by family": pages}


def read(path: str) -> str:
    """Return the text of a document."""
    return (ROOT / path).read_text(encoding="utf-8")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    documents = [path for path in PAGES if (ROOT / path).is_file()]
    made = {PAGES[path]: read(path) for path in documents}
    made |= dict(method_pages())
    made |= {
        "reference/settings.md": settings_page(),
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "curves.md": curves_page(),
    }
    notebooks = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    written = [str(Path("docs") / f.src_uri) for f in files.documentation_pages()]
    made |= {str(page_of(path)): source_page(path) for path in sources(read, [*documents, *written, *notebooks])}
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "assets/fedsmoo/curves-data.js", content=curves_script()))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to pages of the site, and draw some figures into the page, so that they know its colours."""
    uri = page.file.src_uri
    if uri in ("index.md", "first-steps.md"):
        page.meta["hide"] = ["navigation"]  # which would be one word
    if uri.startswith("source/"):
        page.meta["search"] = {"exclude": True}  # code is found by the pages that speak of it
    elif uri == "changelog.md":
        page.meta["search"] = {"boost": 0.1}
    if uri.startswith(("methods/", "reference/")) or uri == "curves.md":
        return markdown  # made for the site
    folder = (ROOT / path_of(uri)).parent
    return rewritten(FIGURE.sub(lambda m: drawn(folder / m[2], m[1]), markdown), uri)


def drawn(path: Path, words: str) -> str:
    """Return a figure as part of the page: dark where the page is, not where the system is."""
    svg = path.read_text(encoding="utf-8").strip()
    dark = r"@media \(prefers-color-scheme: dark\) \{\s*svg \{(.*?)\}\s*\}"
    svg = re.sub(dark, r"[data-md-color-scheme=slate] svg.drawn {\1}", svg)
    svg = svg.replace("<svg ", "<svg class=drawn ", 1)
    return f'<figure class="drawn {path.stem}" aria-label="{words}">\n{svg}\n</figure>'


def on_page_content(html: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Turn formulas into MathML."""
    return with_formulas(html)
