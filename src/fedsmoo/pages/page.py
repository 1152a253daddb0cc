"""The report page: one self-contained file that opens offline and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, FedsmooWarning
from fedsmoo.pages.gather import gather_texts
from fedsmoo.pages.kept import with_results
from fedsmoo.pages.metrics import compact
from fedsmoo.runs.storage.fence import partial_name
from fedsmoo.runs.storage.files import renamed_at_the_end
from fedsmoo.version import __version__

SCRIPTS = ("state.js", "tables.js", "charts.js", "panels.js", "surfaces.js", "results.js", "main.js")


def write_page(run_folders: Sequence[Path], out: Path, files: Sequence[Path] = ()) -> Path:
    """Write the page of some run folders; returns where it lies.

    Args:
        run_folders: folders that ``fedsmoo run`` made, finished or not.
        out: the HTML file.
        files: files of measured results, which ``fedsmoo results export`` made.
    """
    if not run_folders and not files:
        raise FedsmooError("no run folder to report: give folders that fedsmoo run or compare made")
    if out.is_dir():
        inside = out / "report.html"
        raise FedsmooError(f"cannot write the page {out}: it is a folder; name a file in it, such as {inside}")
    data = gather_texts(run_folders)
    for name in (run["name"] for run in data["runs"] if run.get("altered")):
        note = f"{name}: its metrics are not as it wrote them: the page has no curve of it"
        warnings.warn(note, FedsmooWarning, stacklevel=2)
    pieces = render({**(with_results(data, run_folders, files) if files else data), "live": False, "made": made()})
    part = partial_name(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with renamed_at_the_end(part, out), part.open("wb") as f:
            f.writelines(pieces)
    except OSError as e:
        raise FedsmooError(f"cannot write the page {out}: {e.strerror}") from e
    return out


def made() -> str:
    return f"fedsmoo {__version__}, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}"


def render(data: dict[str, Any], connect: str = "'none'") -> Iterator[bytes]:
    """Yield the page in pieces: a large one need not be in memory at once.

    Args:
        data: what ``gather_texts`` returns, and more.
        connect: from where the page may request data: nowhere, or its own server.
    """
    own = "(() => {\n'use strict';\n" + "\n".join(static(name) for name in SCRIPTS) + "\n})();"
    scripts = [plotly_source(), own.encode()]
    parts: dict[str, Iterable[bytes]] = {
        "@CSP@": [policy(scripts, connect).encode()],
        "@STYLE@": [static("page.css").encode()],
        "@DATA@": (for_script(piece).encode() for piece in as_json(data)),
        "@SCRIPTS@": chain.from_iterable((b"<script>", script, b"</script>\n") for script in scripts),
    }
    return fill(static("page.html"), parts)


def fill(template: str, parts: dict[str, Iterable[bytes]]) -> Iterator[bytes]:
    """Replace each mark of a template once, and none inside what was filled in."""
    for mark, pieces in parts.items():
        before, found, template = template.partition(mark)
        assert found, mark
        yield before.encode()
        yield from pieces
    yield template.encode()


def as_json(data: dict[str, Any]) -> Iterator[str]:
    """Yield a page's data as JSON, a run at a time; the curves of a run are JSON already."""
    yield '{"runs":['
    for k, run in enumerate(data["runs"]):
        rest = compact({name: value for name, value in run.items() if name != "curves"})
        yield f"{',' if k else ''}{rest[:-1]},{run['curves'][1:]}"
    yield "]"
    for name, value in data.items():
        if name != "runs":
            yield f",{compact(name)}:{compact(value)}"
    yield "}"


def policy(scripts: Sequence[bytes], connect: str) -> str:
    """Return the content security policy: only the page's own scripts run, and nothing can be requested or sent.

    The plotting library sets styles on elements and paints to images made in memory, hence those two allowances.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def static(name: str) -> str:
    return resources.files("fedsmoo.pages").joinpath("static", name).read_text(encoding="utf-8")


def plotly_source() -> bytes:
    """Read Plotly's JavaScript from the package ``plotly``; ``FedsmooError`` if that is not installed."""
    spec = find_spec("plotly")
    file = Path(spec.origin).parent / "package_data" / "plotly.min.js" if spec and spec.origin else None
    if file is None or not file.is_file():
        raise FedsmooError("the report page is drawn by Plotly, which is not installed: pip install 'fedsmoo[report]'")
    # The charset of the page is stated, and a script may not hold its own closing tag.
    return file.read_bytes().replace(b"</script", b"<\\/script")


def for_script(out: str) -> str:
    """Return JSON that may stand inside a ``<script>`` element: it cannot close the element, nor start a comment.

    >>> for_script('{"name":"</script>"}')
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    for ch in "<>&\u2028\u2029":
        out = out.replace(ch, f"\\u{ord(ch):04x}")
    return out
