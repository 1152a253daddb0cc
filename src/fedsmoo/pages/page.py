"""The report page: one self-contained file that opens offline and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError
from fedsmoo.pages.gather import gather
from fedsmoo.version import __version__

SCRIPTS = ("state.js", "tables.js", "charts.js", "panels.js", "surfaces.js", "results.js", "main.js")


def write_page(run_folders: Sequence[Path], out: Path) -> Path:
    """Write the page of some run folders; returns where it lies.

    Args:
        run_folders: folders that ``fedsmoo run`` made, finished or not.
        out: the HTML file.
    """
    if not run_folders:
        raise FedsmooError("no run folder to report: give folders that fedsmoo run or compare made")
    content = render({**gather(run_folders), "live": False, "made": made()})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(content, encoding="utf-8")
    except OSError as e:
        raise FedsmooError(f"cannot write the page {out}: {e.strerror}") from e
    return out


def made() -> str:
    return f"fedsmoo {__version__}, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}"


def render(data: dict[str, Any], connect: str = "'none'") -> str:
    """Return the page as text. ``connect`` is from where it may request data: nowhere, or its own server."""
    own = "(() => {\n'use strict';\n" + "\n".join(static(name) for name in SCRIPTS) + "\n})();"
    scripts = [plotly_source(), own]
    tags = "\n".join(f"<script>{s}</script>" for s in scripts)
    parts = {
        "@CSP@": policy(scripts, connect),
        "@STYLE@": static("page.css"),
        "@DATA@": for_script(data),
        "@SCRIPTS@": tags,
    }
    return fill(static("page.html"), parts)


def fill(template: str, parts: dict[str, str]) -> str:
    """Replace each mark of a template once, and none inside what was filled in."""
    out = []
    for mark, value in parts.items():
        before, found, template = template.partition(mark)
        assert found, mark
        out += [before, value]
    return "".join([*out, template])


def policy(scripts: Sequence[str], connect: str) -> str:
    """Return the content security policy: only the page's own scripts run, and nothing can be requested or sent.

    The plotting library sets styles on elements and paints to images made in memory, hence those two allowances.
    """
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def static(name: str) -> str:
    return resources.files("fedsmoo.pages").joinpath("static", name).read_text(encoding="utf-8")


def plotly_source() -> str:
    """Read Plotly's JavaScript from the package ``plotly``; ``FedsmooError`` if that is not installed."""
    spec = find_spec("plotly")
    file = Path(spec.origin).parent / "package_data" / "plotly.min.js" if spec and spec.origin else None
    if file is None or not file.is_file():
        raise FedsmooError("the report page is drawn by Plotly, which is not installed: pip install 'fedsmoo[report]'")
    # The charset of the page is stated, and a script may not hold its own closing tag.
    return file.read_text(encoding="utf-8").replace("</script", "<\\/script")


def for_script(value: Any) -> str:
    """Return JSON that may stand inside a ``<script>`` element: it cannot close the element, nor start a comment.

    >>> for_script({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    out = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for ch in "<>&\u2028\u2029":
        out = out.replace(ch, f"\\u{ord(ch):04x}")
    return out
