"""Replies that no honest client sends: what becomes of an honest one, by name."""

from __future__ import annotations

import io
import math
import pickle
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fedsmoo.deploy.judge import Reply

Twist = Callable[[Reply], Reply | None]
EVIL = "\x1b[2J\x1b]0;owned\x07\r\nfedsmoo: all is well\u202e\x00"
LONG = "x" * 10**6

# What may stand where a number or a word should be.
ODD: dict[str, Any] = {
    "nothing": None, "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-1": -1, "-1e30": -1e30, "1e30": 1e30,
    "1e39": 1e39, "1e308": 1e308, "2**63": 2**63, "10**400": 10**400, "a half": 0.5, "text": "3", "no text": "",
    "escapes": EVIL, "a long text": LONG, "bytes": b"\xff\x00", "a list": [1.0] * 1000, "a table": {"a": 1},
    "a pickle": pickle.dumps(print), "10**9": 10**9,
}  # fmt: skip


def npy(values: np.ndarray) -> bytes:
    """An array as it travels."""
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


def with_header(data: bytes, old: str, new: str) -> bytes:
    """The same bytes under a header that says something else, as long as before."""
    assert old.encode() in data, old
    short = len(old) - len(new)
    return data.replace(old.encode(), (new + " " * short).encode(), 1) if short >= 0 else data


def facts(reply: Reply, **changes: Any) -> Reply:
    return replace(reply, facts={k: v for k, v in {**reply.facts, **changes}.items() if v is not None})


def numbers(reply: Reply, **changes: Any) -> Reply:
    return replace(reply, numbers={k: v for k, v in {**reply.numbers, **changes}.items() if v is not None})


def array(reply: Reply, data: bytes, name: str = "w") -> Reply:
    return replace(reply, arrays={**reply.arrays, name: data})


def of_values(change: Callable[[np.ndarray], np.ndarray]) -> Twist:
    """A twist that changes the numbers of the model."""
    return lambda reply: array(reply, npy(change(np.load(io.BytesIO(reply.arrays["w"])).copy())))


def of_bytes(change: Callable[[bytes], bytes]) -> Twist:
    """A twist that changes the bytes of the model."""
    return lambda reply: array(reply, change(reply.arrays["w"]))


def put(v: np.ndarray, value: float, where: Any = 7) -> np.ndarray:
    v[where] = value
    return v


def zipped(v: bytes) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, w=np.zeros(10**6))
    return out.getvalue()


VALUES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a nan": lambda v: put(v, math.nan),
    "all nan": lambda v: put(v, math.nan, slice(None)),
    "an infinity": lambda v: put(v, math.inf),
    "minus infinity": lambda v: put(v, -math.inf),
    "one number of 1e30": lambda v: put(v, 1e30),
    "all 1e30": lambda v: put(v, 1e30, slice(None)),
    "all -3e38": lambda v: put(v, -3e38, slice(None)),
    "a million times": lambda v: 1e6 * (v + 1),
    "one number of 1e6": lambda v: put(v, 1e6),
    "too short": lambda v: v[:-1],
    "too long": lambda v: np.append(v, v[:1]),
    "empty": lambda v: v[:0],
    "two axes": lambda v: v.reshape(-1, 10),
    "no axis": lambda v: np.array(v[0]),
    "doubles": lambda v: v.astype(np.float64),
    "halves": lambda v: v.astype(np.float16),
    "whole numbers": lambda v: v.astype(np.int32),
    "other byte order": lambda v: v.astype(">f4"),
    "complex": lambda v: v.astype(np.complex64),
    "truth values": lambda v: v > 0,
    "texts": lambda v: v.astype("U8"),
    "dates": lambda v: np.zeros(v.shape, "datetime64[s]"),
    "records": lambda v: np.zeros(v.shape, "f4,i4"),
}

BYTES: dict[str, Callable[[bytes], bytes]] = {
    "no bytes": lambda d: b"",
    "one byte": lambda d: b"x",
    "a pickle": lambda d: pickle.dumps(print),
    "an array of objects": lambda d: object_array(),
    "cut in its header": lambda d: d[:40],
    "cut in its numbers": lambda d: d[:-100],
    "more than it says": lambda d: d + b"\x00" * 4,
    "zeros": lambda d: bytes(len(d)),
    "random bytes": lambda d: np.random.default_rng(0).bytes(len(d)),
    "a zip": zipped,
    "a header of a petabyte": lambda d: with_header(d, "(650,)", "(9**9,"),
    "a huge shape": lambda d: with_header(d, "'shape': (650,), ", "'shape':(10**13,)"),
    "a negative shape": lambda d: with_header(d, "(650,)", "(-65,)"),
    "an evaluated shape": lambda d: with_header(d, "(650,)", "exit()"),
    "fortran order": lambda d: with_header(d, "False", "True"),
    "another key": lambda d: with_header(d, "'descr'", "'evil_'"),
    "a deep header": lambda d: b"\x93NUMPY\x01\x00" + struct.pack("<H", 60000) + b"(" * 60000,
    "a long header": lambda d: b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{",
    "version 9": lambda d: d[:6] + b"\x09\x00" + d[8:],
    "a name of another type": lambda d: with_header(d, "'<f4'", "'|O8'"),
}


def object_array() -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([print] * 650, dtype=object), allow_pickle=True)
    return out.getvalue()


class Replay:
    """Sends its first reply again and again."""

    def __init__(self, **changes: Any) -> None:
        self.first: Reply | None = None
        self.changes = changes

    def __call__(self, reply: Reply) -> Reply:
        self.first = self.first or reply
        return facts(self.first, **self.changes)


def replies() -> Iterator[tuple[str, Callable[[], Twist]]]:
    """Yield hostile replies: a name, and what makes the twist of a new federation."""
    yield "no reply", lambda: lambda r: None
    yield "an empty reply", lambda: lambda r: Reply({}, {}, {})
    yield "its first reply again", Replay
    for said in ("lost state", "client error", EVIL, LONG, "missing: forged", ["x"], 7):
        name = f"says that it refuses: {said!r}"[:60]
        yield name, lambda said=said: lambda r: Reply({"refused": said, "detail": EVIL + LONG}, {}, {})
    for name in ("session", "number", "client", "version"):
        for odd, value in ODD.items():
            yield f"{name} is {odd}", lambda n=name, v=value: lambda r: facts(r, **{n: v})
    for name in ("loss", "drift", "samples", "steps"):
        for odd, value in ODD.items():
            yield f"{name} is {odd}", lambda n=name, v=value: lambda r: numbers(r, **{n: v})
    for client in (0, 2):
        yield f"says it is client {client}", lambda c=client: lambda r: facts(r, client=c)
    for step in (-1, 1, 5):
        yield f"of round {step:+}", lambda s=step: lambda r: facts(r, number=r.facts["number"] + s)
    for name, change in VALUES.items():
        yield f"the model is {name}", lambda c=change: of_values(c)
    for name, damage in BYTES.items():
        yield f"the model's bytes: {name}", lambda d=damage: of_bytes(d)
    yield "no arrays", lambda: lambda r: replace(r, arrays={})
    yield "an array too many", lambda: lambda r: array(r, r.arrays["w"], EVIL)
    yield "a thousand arrays", lambda: lambda r: replace(r, arrays={f"w{i}": b"" for i in range(1000)})
    yield "an array under a name that is none", lambda: lambda r: replace(r, arrays={7: r.arrays["w"]})  # type: ignore[dict-item]
    yield "text for bytes", lambda: lambda r: array(r, "text")  # type: ignore[arg-type]
    yield "a number for bytes", lambda: lambda r: array(r, 7)  # type: ignore[arg-type]
