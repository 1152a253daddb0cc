"""The code blocks of a document, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "experiments/README.md",
    *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.S | re.M)
SHELL = ("bash", "sh", "console", "")
STARTS = ("fedsmoo", "torchrun", "pip", "make", "python", "GLOO", "PYTHONPATH", "$ ", "for ", "CUDA")


@dataclass(frozen=True)
class Block:
    """A block of code: where it is, its language and its text."""

    place: str
    language: str
    text: str

    @property
    def is_shell(self) -> bool:
        """Whether it holds commands; a block that says no language may."""
        return self.language in SHELL[:3] or (not self.language and self.text.startswith(STARTS))

    @property
    def file(self) -> str | None:
        """The name of the file that the block shows, which its first line says."""
        found = re.match(r"# ([\w/]+\.(?:py|toml))\n", self.text)
        return found[1] if found else None


def blocks(document: str) -> list[Block]:
    """The blocks of a document, from top to bottom."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [Block(f"{document}:{text[: m.start()].count(chr(10)) + 1}", m[1], m[2]) for m in BLOCK.finditer(text)]


def commands(block: Block) -> list[list[str]]:
    """The words of every command in a block of shell: variables before it, and what comes of its output, left out."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    out = []
    for line in lines:
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            del words[0]
        cut = next((k for k, word in enumerate(words) if word in (">", "&", "|", "&&", ";") or word[:2] == "2>"), None)
        if words and words[0] != "case":
            out.append(words[:cut])
    return out
