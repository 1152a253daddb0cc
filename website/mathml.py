"""Formulas as MathML, which browsers draw by themselves: no script, no fonts, nothing from elsewhere."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.S)


def with_formulas(content: str) -> str:
    """Return a page's HTML with MathML where Markdown left TeX."""
    return FORMULA.sub(lambda m: formula(m[2], m[1] == "div"), content)


def formula(text: str, display: bool) -> str:
    """Return a formula as MathML; ``\\(...\\)`` and ``\\[...\\]`` stand around its TeX."""
    tex = html.unescape(text).strip()[2:-2].strip()
    made = convert(tex, display="block" if display else "inline")
    return f'<div class="formula">{made}</div>' if display else made
