"""Hostile files for the fuzzing drill: sound documents, changed by Hypothesis, and bombs that were made by hand."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import zipfile
from typing import Any

import numpy as np
from hypothesis import strategies as st

DEEP = 50_000
BLOCKS = (b"[" * DEEP, b'{"a":' * DEEP, b"9" * 5000, b"\0\xff")
ODD_TEXT = ("", "\x1b[2J", "a\nb", "\udcff", "NaN", "none", "evil.py:Method", "../../etc/passwd", "x" * 5000, "\0")
ODD_NUMBERS = (0, -1, 2**31, 2**53 + 1, 2**62, 2**63, 2**64, 10**400, 1.5, -0.0, 1e308, float("nan"), float("inf"))
ODD = st.one_of(
    st.sampled_from([None, True, False, [], {}, [[]], [None], {"": {}}, {"name": []}, *ODD_TEXT, *ODD_NUMBERS]),
    st.text(max_size=20),
    st.integers(),
    st.floats(),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=4),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where values stand in a tree of lists and tables."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], change: str, new: Any) -> Any:
    """Return a tree with another value at a place, none there, one more beside it, or it folded in itself."""
    if not path:
        return {"set": new, "remove": {}, "add": [value, new], "deep": nested(value)}[change]
    key, *rest = path
    out = dict(value) if isinstance(value, dict) else list(value)
    if rest or change in ("set", "deep"):
        out[key] = changed(out[key], tuple(rest), change, new)
    elif change == "remove":
        del out[key]
    elif isinstance(out, dict):
        out[str(new)] = out[key]
    else:
        out.insert(key, new)
    return out


def nested(value: Any, depth: int = 300) -> Any:
    for _ in range(depth):
        value = [value]
    return value


@st.composite
def trees(draw: st.DrawFn, document: Any) -> Any:
    """A document with up to four changes."""
    for _ in range(draw(st.integers(1, 4))):
        where = draw(st.sampled_from(places(document)))
        document = changed(document, where, draw(st.sampled_from(["set"] * 5 + ["remove", "add", "deep"])), draw(ODD))
    return document


@st.composite
def torn(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes of which some were replaced, cut out or put in."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.sampled_from([start, start + 1, min(start + 20, len(content)), len(content)]))
        put = draw(st.one_of(st.binary(max_size=12), st.sampled_from(BLOCKS)))
        content = content[:start] + put + content[end:]
    return content


def as_json(value: Any) -> bytes:
    """Return a tree as JSON; where there is none for it, as something near."""
    try:
        return json.dumps(value).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return b"[" * DEEP


def as_toml(value: Any) -> bytes:
    """Return a table as TOML whose values are written as in JSON, which TOML shares for the most part."""
    if not isinstance(value, dict):
        return as_json(value)
    try:
        lines = [f"{json.dumps(str(k))} = {toml_value(v)}" for k, v in value.items()]
    except RecursionError:  # how deep is too deep depends on who calls, which cases may not
        return b"x = " + b"[" * DEEP
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf").replace("null", '"none"')


def sealed(value: Any) -> bytes:
    """Return a manifest with the hash of its text, as runs write it."""
    text = as_json(value)
    return text + b"\n" + hashlib.sha256(text).hexdigest().encode() + b"\n"


def split_file(value: Any) -> bytes:
    """Return a split with the hash of its content."""
    if not isinstance(value, dict):
        return as_json(value)
    text = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return as_json({**value, "sha256": hashlib.sha256(text).hexdigest()})


def npy(shape: Any, descr: Any = "<i8", data: bytes = b"", fortran: Any = False) -> bytes:
    """Return an ``.npy`` that announces a shape and a type, and holds some bytes."""
    header = repr({"descr": descr, "fortran_order": fortran, "shape": shape}).encode("utf-8", "replace")
    return b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + data


def npz(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return out.getvalue()


def plain_npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.asarray(array))
    return out.getvalue()


def laughs(depth: int = 40) -> bytes:
    """Return a pickle of a list that holds itself, halved, so often that it unfolds to 2**40 values."""
    value: list[Any] = [1]
    for _ in range(depth):
        value = [value, value]
    return pickle.dumps(value)


ZEROS = bytes(2**28)
PICKLES = (
    b"\x80\x02]r\xff\xff\xff\x7f.",  # remembers a list as number 2**31 - 1: room for 4.4 GB
    b"\x80\x04\x8e\xff\xff\xff\xff\x00\x00\x00\x00.",  # announces 4 GB of bytes
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f].",  # a frame of 2**63 - 1 bytes
    b"cos\nsystem\n(S'touch owned'\ntR.",
    b"\x80\x02](" + b"]" * DEEP + b"e.",
    laughs(),
    pickle.dumps([[0, 1], [2, float("nan")], ["3"], [2**62]]),
)
HEADERS = [
    ((2**40,), "<i8"), ((2**62, 2**62), "<i8"), ((2**40, 0), "<i8"), ((-1,), "<i8"), ((1.5,), "<i8"), ("x", "<i8"),
    ((4,), "|V2000000000"), ((4,), [("a", "<i8", (2**20, 2**20))]), ((4,), "<M8[ns]"), ((), "<i8"), ((2**31,), "|V0"),
    ((True,), "<i8"), ((4,), "|S1"), ((4,), "<f8"), ((10**30,), "|u1"),
]  # fmt: skip
ARRAYS = st.one_of(
    st.sampled_from([npy(shape, descr, bytes(64)) for shape, descr in HEADERS]),
    st.sampled_from([npy((4,), "|O", content) for content in PICKLES]),
    st.sampled_from([b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 9000, npy((1,) * 70, "<i8", bytes(8)), b""]),
    st.lists(ODD, max_size=4).map(lambda values: npy((len(values),), "|O", pickle.dumps(values))),
    st.lists(st.floats(width=32), max_size=8).map(plain_npy),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8).map(plain_npy),
    torn(plain_npy(np.arange(12).reshape(3, 4))),
)


def json_cases(document: Any) -> st.SearchStrategy[bytes]:
    """A document with other values, or with other bytes."""
    return st.one_of(trees(document).map(as_json), torn(as_json(document)))
