"""Docstrings as Markdown: examples become blocks of code, and names in roles of Sphinx plain names."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth|mod|attr):`([^`]+)`")
EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.S | re.M)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```", text)
