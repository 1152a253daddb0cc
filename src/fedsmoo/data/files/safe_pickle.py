"""Reading pickles of arrays without running what they say.

A pickle is a program: loading one can call any function. CIFAR's official files are pickles, so they are read by a
loader that knows exactly the few names such files need and refuses every other one before it is looked up. Not even
NumPy's own unpickling code runs, since a forged dtype could make it follow arbitrary pointers: each name is bound to a
stand-in that only keeps what it is given, and arrays are made from that afterwards. Nor may a few bytes fill the
memory: what they announce must be there, and what they name twice is not unfolded more often than they are long.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError

_PLAIN = re.compile(r"[biufSU]\d+")  # numbers and fixed-width strings


class _DType:
    """Stands for a dtype: its code, such as u1, and its byte order."""

    def __init__(self, code: str, *rest: Any) -> None:
        self.code, self.order = str(code), "|"

    def __setstate__(self, state: Any) -> None:
        self.order = str(state[1])
        if any(part is not None for part in state[2:5]):  # subarrays, field names, fields
            raise pickle.UnpicklingError("a structured dtype")


class _ArrayType:
    """Stands for NumPy's array type, which a pickle may name but has no need to call."""


class _Array:
    """Stands for an array: shape, dtype, order and bytes, as NumPy pickles them."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def value(self, budget: _Budget) -> Any:
        """Return the array; ragged lists, which NumPy stores as an array of objects, come back as a list."""
        _, shape, dtype, fortran, raw = self.state
        if dtype.code in ("O", "O8") and isinstance(raw, list) and len(shape) == 1:
            return [_unwrap(v, budget) for v in raw]
        if not _PLAIN.fullmatch(dtype.code) or dtype.order not in ("|", "<", ">", "="):
            raise pickle.UnpicklingError(f"dtype {dtype.code}")
        if not isinstance(raw, str | bytes | bytearray):
            raise pickle.UnpicklingError("an array without bytes")
        budget.spend(len(raw))
        data = raw.encode("latin-1") if isinstance(raw, str) else bytes(raw)
        flat = np.frombuffer(data, np.dtype(dtype.order + dtype.code)).copy()
        return flat.reshape(shape, order="F" if fortran else "C")


def _latin1(text: str, encoding: str) -> bytes:
    """Encode text as old protocols of pickle wrote bytes; refuse any other codec, for none is needed."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r}")
    return text.encode("latin-1")


_ALLOWED = {
    ("numpy", "dtype"): _DType,
    ("numpy", "ndarray"): _ArrayType,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("_codecs", "encode"): _latin1,
}


class _Loader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return found

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("a persistent id")


class _Budget:
    """How many values and bytes may still be made: as many as there are bytes to say them with."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise pickle.UnpicklingError("more values than it holds")


def _unwrap(value: Any, budget: _Budget) -> Any:
    """Containers with arrays in place of their stand-ins; anything but plain data is an error."""
    budget.spend(1)
    if isinstance(value, _Array):
        return value.value(budget)
    if isinstance(value, dict):
        return {_unwrap(k, budget): _unwrap(v, budget) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_unwrap(v, budget) for v in value)
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | bytearray):
        return value
    raise pickle.UnpicklingError(f"an object of type {type(value).__name__.lstrip('_')}")


def _refuse_bombs(data: bytes) -> None:
    """Read a pickle's instructions without following them; refuse numbers that memory would be taken for.

    Python's loader makes room for as many remembered values as one instruction names, and for as many bytes as one
    announces.
    """
    for code, argument, _ in pickletools.genops(data):
        if code.name.endswith(("PUT", "GET", "FRAME")) and int(argument or 0) > len(data):
            raise pickle.UnpicklingError(f"room for {argument}")
        if code.name.startswith("EXT"):
            raise pickle.UnpicklingError("an extension")


def load_pickle(data: bytes, where: str) -> Any:
    """Arrays, numbers, strings and containers from a pickle; anything else in it is an error.

    Args:
        data: the pickle.
        where: a name for error messages.
    """
    try:
        _refuse_bombs(data)
        return _unwrap(_Loader(io.BytesIO(data), encoding="latin1").load(), _Budget(2 * len(data)))
    except pickle.UnpicklingError as error:
        raise FedsmooError(
            f"{where}: not a plain data file, it asks for {error}; it was not loaded. Get the official file again"
        ) from None
    except Exception as error:  # a broken pickle may fail in any way; none of them is the user's to debug
        raise FedsmooError(
            f"{where}: damaged or truncated ({type(error).__name__}); get the official file again"
        ) from None
