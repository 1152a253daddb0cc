"""Vectors as arrays for a wire, and back with suspicion: names, types, shapes and bytes are checked before use."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from fedsmoo.algorithms.quantised import BLOCK, Quantised, int8_codes, int8_values
from fedsmoo.algorithms.statistics import Recomputed
from fedsmoo.core import Algorithm, Vectors
from fedsmoo.core.untrusted import text

SCALE = ".scale"
NOTHING: Mapping[str, int] = MappingProxyType({})


class Refusal(Exception):
    """Why something that arrived is left out: a short reason of ours to count, and a detail to read.

    The detail may quote what somebody sent: it is cut, and no control characters are in it.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, text(detail, 300)
        super().__init__(f"{self.reason}: {self.detail}" if detail else self.reason)


def brief_value(value: object) -> str:
    """Return a value that somebody sent in a few characters, whatever it is.

    >>> brief_value(7), brief_value("\\x1b[2J"), brief_value([0.0] * 10**6), brief_value("x" * 100)[-4:]
    ('7', "'\\\\x1b[2J'", 'a list', "xxx'")
    """
    if isinstance(value, str | bytes):
        return repr(value[:60])
    if isinstance(value, bool | float) or value is None or (isinstance(value, int) and abs(value) < 2**64):
        return repr(value)
    return f"a {type(value).__name__}"


def wire_of(algorithm: Algorithm) -> str:
    """Return how a method's vectors travel: exact, fp16 or int8."""
    while isinstance(algorithm, Recomputed):  # running statistics, around what else there is
        algorithm = algorithm.inner
    return algorithm.kind if isinstance(algorithm, Quantised) else "exact"


def plain_of(algorithm: Algorithm) -> dict[str, int]:
    """Return what travels as it is, on any wire, with its length: single numbers, and what is no vector of a model."""
    return {**dict.fromkeys(algorithm.scalars, 1), **algorithm.sizes}


def to_arrays(vectors: Vectors, wire: str, plain: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Return named arrays of what travels. Vectors that a ``Quantised`` method rounded lose nothing here."""
    out: dict[str, np.ndarray] = {}
    for name, v in vectors.items():
        v = v.detach().cpu()
        if wire == "exact" or name in plain:
            out[name] = v.numpy()
        elif wire == "fp16":
            out[name] = v.to(torch.float16).numpy()
        else:
            codes, scale = int8_codes(v)
            out[name] = codes.to(torch.int8).numpy()
            out[name + SCALE] = scale.contiguous().view(torch.int16).numpy()  # numpy has no bfloat16: its bits
    return out


def expected_arrays(
    names: tuple[str, ...], size: int, dtype: torch.dtype, wire: str, plain: Mapping[str, int] = NOTHING
) -> dict[str, tuple[np.dtype, int]]:
    """Return the type and length of every array that should arrive; ``plain`` ones, of these lengths, as they are."""
    whole = torch.empty(0, dtype=dtype).numpy().dtype
    single = {n: (whole, plain[n]) for n in names if n in plain}
    vectors = [n for n in names if n not in plain]
    if wire == "int8":
        codes = {n: (np.dtype(np.int8), size) for n in vectors}
        return codes | {n + SCALE: (np.dtype(np.int16), -(-size // BLOCK)) for n in vectors} | single
    return dict.fromkeys(vectors, (np.dtype(np.float16) if wire == "fp16" else whole, size)) | single


def from_arrays(
    raw: Mapping[str, bytes],
    names: tuple[str, ...],
    size: int,
    dtype: torch.dtype,
    wire: str,
    plain: Mapping[str, int] = NOTHING,
) -> Vectors:
    """Read vectors from ``.npy`` bytes by name; raises a :class:`Refusal` if they are not what is expected."""
    want = expected_arrays(names, size, dtype, wire, plain)
    if set(raw) != set(want):
        got = ", ".join(brief_value(n) for n in sorted(raw, key=str)[:6])
        raise Refusal("wrong names", f"{got or 'none'} instead of {', '.join(sorted(want))}")
    parts = {n: npy_array(n, raw[n], *want[n]) for n in want}
    out = {n: _decode(parts, n, dtype, "exact" if n in plain else wire) for n in names}
    for n, v in out.items():
        if not bool(torch.isfinite(v).all()):
            raise Refusal("not finite", f"{n} has NaN or infinite numbers")
    return Vectors(**out)


def _decode(parts: Mapping[str, np.ndarray], name: str, dtype: torch.dtype, wire: str) -> Tensor:
    v = torch.from_numpy(parts[name])
    if wire == "int8":
        return int8_values(v.to(dtype), torch.from_numpy(parts[name + SCALE]).view(torch.bfloat16))
    return v.to(dtype)


def npy_array(name: str, data: bytes, dtype: np.dtype, length: int) -> np.ndarray:
    """Read an array from ``.npy`` bytes, whose header must say what is expected before anything is allocated."""
    try:
        stream = io.BytesIO(data)
        major, _ = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, found = read(stream, max_header_size=1000)
    except Exception as e:  # NumPy reads a header as a piece of Python, which may fail in any way
        raise Refusal("unreadable bytes", f"{name}: {type(e).__name__}") from e
    if found != dtype:
        raise Refusal("wrong type", f"{name} is {found}, not {dtype}")
    if shape != (length,):
        raise Refusal("wrong shape", f"{name} is {shape}, not {(length,)}")
    rest = len(data) - stream.tell()
    if rest != length * dtype.itemsize:
        raise Refusal("unreadable bytes", f"{name} has {rest} bytes, not {length * dtype.itemsize}")
    return np.frombuffer(data, dtype, length, stream.tell()).copy()
