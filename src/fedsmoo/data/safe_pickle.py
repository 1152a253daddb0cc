"""Reading pickles of arrays without running what they say.

A pickle is a program: loading one can call any function. CIFAR's official files are pickles, so they are read by a
loader that knows exactly the few names such files need, each bound to a harmless stand-in, and refuses every other one
before it is looked up.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 2 and 3 write bytes in old protocols; no other codec is needed, so none is available."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"codec {encoding!r}")
    return text.encode("latin-1")


def _dtype(kind: Any, *rest: Any) -> np.dtype:
    """NumPy's dtype of numbers and strings, or plain object, whose elements then come from this same loader."""
    dtype = np.dtype(kind, *rest)
    if dtype.hasobject and dtype != np.dtype(object):
        raise pickle.UnpicklingError(f"dtype {dtype}")
    return dtype


class _ArrayType:
    """Stands for NumPy's array type, which a pickle may name but must not call."""


def _empty_array(kind: Any, shape: Any, typecode: Any) -> np.ndarray:
    """The empty array that NumPy's pickles fill afterwards; only that, whatever the arguments ask for."""
    if kind is not _ArrayType or tuple(shape) != (0,):
        raise pickle.UnpicklingError("an array of an unusual kind")
    return np.empty(0, np.uint8)


_ALLOWED = {
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): _ArrayType,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
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


def load_pickle(data: bytes, where: str) -> Any:
    """Arrays, numbers, strings and containers from a pickle; anything else in it is an error.

    Args:
        data: the pickle.
        where: a name for error messages.
    """
    try:
        return _Loader(io.BytesIO(data), encoding="latin1").load()
    except pickle.UnpicklingError as error:
        raise FedsmooError(
            f"{where}: not a plain data file, it asks for {error}; it was not loaded. Get the official file again"
        ) from None
    except Exception as error:  # a broken pickle may fail in any way; none of them is the user's to debug
        raise FedsmooError(
            f"{where}: damaged or truncated ({type(error).__name__}); get the official file again"
        ) from None
