"""Numbers in the sentences of README.md, docs/*.md and docs/tutorials/*.md are those of the files in results/.

said.py lists, for each document, pieces of its text: with holes and what fills them, computed from results/ or from the
paper's printed numbers, or plain where a number is a setting and nothing measured. Every decimal, per cent and number
with a unit outside of code and of generated tables has to lie in one of these pieces, and every piece has to be in its
document, so a number changed by hand is noticed.

PYTHONPATH=src python -m benchmarks.documents.prose            # writes what the files say into the sentences
PYTHONPATH=src python -m benchmarks.documents.prose --check    # changes nothing and fails if they say something else
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/tutorials").glob("*.md"))]

# Made by commands, or to be typed into one: nobody's prose.
MADE = re.compile(r"<!-- (table|gpu|demo)\b.*?<!-- /\1 -->|^ *```.*?^ *```|<!--.*?-->", re.S | re.M)
CODE = re.compile(r"(?<!`)`[^`]+`(?!`)|\]\([^)]*\)|https?://\S+")
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
UNITS = (
    "s|ms|us|GB|MB|kB|TB|MiB|TB/s|Gb/s|M|GFLOP|TFLOP/s|points?|rounds?|times|seconds?|minutes?|hours?|passes|launches|"
    "bytes|runs|seeds?|lines"
)
ALONE = re.compile(rf"(?<![\w.])(?<!\w-)({NUMBER})(?=(\s*(?:%|×|per cent)|x\b|\s+(?:{UNITS})\b)?)")


@dataclass(frozen=True)
class Piece:
    """A piece of a document: as it has to read now, and with any number in its holes."""

    text: str
    exact: re.Pattern[str]
    loose: re.Pattern[str]


def piece(template: str, values: Sequence[object] = ()) -> Piece:
    """``"FedAvg takes {:.1f} ms"`` and its values; between words there may be any white space."""
    parts = re.split(r"\{[^{}]*\}", template)
    text = template.format(*values)

    def spaced(words: str) -> str:
        return re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(words))

    return Piece(text, re.compile(spaced(text)), re.compile(rf"({NUMBER})".join(map(spaced, parts))))


def blanked(text: str, *kinds: re.Pattern[str]) -> str:
    """The text with what matches replaced by spaces, so that places stay where they are."""
    for kind in kinds:
        text = kind.sub(lambda m: re.sub(r"\S", " ", m[0]), text)
    return text


def numbers(text: str) -> list[tuple[int, int]]:
    """Where a document has numbers that somebody may have measured: decimals, per cents, and those with a unit."""
    prose = blanked(text, MADE, CODE)
    found = [m for m in ALONE.finditer(prose) if m[2] or re.search(r"[.e]", m[1])]
    return [m.span(1) for m in found]


def problems(text: str, pieces: Iterable[Piece]) -> list[str]:
    """A line for each piece that a document does not have, and for each number that lies in none."""
    prose, out, spans = blanked(text, MADE), [], []
    for p in pieces:
        there = [m.span() for m in p.exact.finditer(prose)]
        spans += there
        if not there:
            near = p.loose.search(prose)
            says = f"says {' '.join(near[0].split())!r}" if near else "does not say that anywhere"
            out.append(f"by the files it is {p.text!r}; the text {says}")
    for start, end in numbers(text):
        if not any(a <= start and end <= b for a, b in spans):
            around = " ".join(text[max(0, start - 40) : end + 20].split())
            out.append(f"{text[start:end]} in {around!r} is in no piece of benchmarks/documents/said.py")
    return out


def refreshed(text: str, pieces: Iterable[Piece]) -> str:
    """The document with the holes of its pieces filled anew; a piece that is there several times is left alone."""
    for p in pieces:
        prose = blanked(text, MADE)
        near = list(p.loose.finditer(prose))
        if p.exact.search(prose) or len(near) != 1 or not near[0].groups():
            continue
        fresh = re.fullmatch(p.loose, p.text)
        assert fresh is not None
        for k in range(len(fresh.groups()), 0, -1):
            start, end = near[0].span(k)
            text = text[:start] + fresh[k] + text[end:]
    return text


def unnoticed(text: str, pieces: Sequence[Piece]) -> list[tuple[int, int]]:
    """The numbers of a document whose last digit may be another without a problem."""
    prose, out = blanked(text, MADE), []
    spans = [[m.span() for m in p.exact.finditer(prose)] for p in pieces]
    for start, end in numbers(text):
        digit = max(k for k in range(start, end) if text[k].isdigit())
        other = str((int(text[digit]) + 1) % 10)
        changed, blank = (t[:digit] + other + t[digit + 1 :] for t in (text, prose))
        here = [p for p, there in zip(pieces, spans, strict=True) if all(a <= digit < b for a, b in there)]
        if all(p.exact.search(blank) for p in here) and not problems(changed, pieces):
            out.append((start, end))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if a sentence is out of date")
    parser.add_argument("--mutate", action="store_true", help="say how many changes of a last digit are noticed")
    args = parser.parse_args()
    from benchmarks.documents.said import said
    from fedsmoo.runs.storage.files import write_together

    renewed: dict[Path, str] = {}
    wrong, all_of_them, missed = [], 0, 0
    for path in DOCUMENTS:
        name, old = str(path.relative_to(ROOT)), path.read_text()
        pieces = said(name)
        new = old if args.check else refreshed(old, pieces)
        if new != old:
            renewed[path] = new
        wrong += [f"{name}: {line}" for line in problems(new, pieces)]
        if args.mutate:
            all_of_them, missed = all_of_them + len(numbers(new)), missed + len(unnoticed(new, pieces))
    write_together(renewed)
    for path in renewed:
        print(f"{path.relative_to(ROOT)}: renewed")
    if args.mutate:
        print(f"{all_of_them - missed} of {all_of_them} changes noticed")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
