"""Triton's interpreter with less bookkeeping, which is most of its time; the numbers are the same.

Import it before anything that has a kernel: whether a function is interpreted is settled when it is decorated.
"""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported: its own functions look at it, too

import triton.runtime.interpreter as interpreter
from triton.language.semantic import TritonSemantic

core = interpreter.tl.core


def index_too(tensor: Any, scope: Any, patch: Any = interpreter._patch_lang_tensor) -> None:
    """Loop bounds are arrays of one element, which newer NumPy no longer turns into an int by itself."""
    patch(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def member(found: Any, semantic: Any) -> Any:
    """A function of the language, which is told by whom it is interpreted."""
    inner = getattr(found, "__wrapped__", found)  # without the check that it is told
    return lambda *args, **named: inner(*args, **(named | {"_semantic": semantic}))


def patch_members(package: Any, builder: Any, scope: Any) -> None:
    semantic = TritonSemantic(builder)
    for name, found in [*vars(package).items()]:
        if core.is_builtin(found):
            scope.set_attr(package, name, member(found, semantic))


class Kept:
    """Changes of the language that stay: everything that a process of tests runs is interpreted."""

    def restore(self) -> None:
        pass


replaced: set[int] = set()  # modules by whose names the language is known, and which are done


def patch_once(fn: Any, patch: Any = interpreter._patch_lang) -> Kept:
    """Replace the functions of the language once, not in every launch and every call within one."""
    names = {id(v) for v in fn.__globals__.values() if v is interpreter.tl or v is core}
    if not names <= replaced:
        patch(fn)
        core.dtype.to_ir = core.block_type.to_ir = lambda self, builder: self  # the interpreter's types are Triton's
        replaced.update(names)
    return Kept()


@functools.cache
def shape_of(lengths: tuple[int, ...]) -> tuple[Any, int, Any, Any]:
    """A shape as types and as tensors have it, each with its product."""
    numel = core.validate_block_shape(lengths)
    return core.tuple(lengths), numel, core.tuple([core.constexpr(n) for n in lengths]), core.constexpr(numel)


NUMBER = core.tuple([]), core.constexpr(1)


def start_type(self: Any, element_ty: Any, shape: Any) -> None:
    plain = tuple(n.value if isinstance(n, core.constexpr) else n for n in shape)
    if not plain:
        raise TypeError("0d block_type is forbidden")
    self.element_ty, self.known = element_ty, shape_of(plain)
    self.shape, self.numel = self.known[:2]


def start_tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = type.known[2:] if type.is_block() else NUMBER


def broadcast(self: Any, lhs: Any, rhs: Any, otherwise: Any = TritonSemantic.broadcast_impl_value) -> Any:
    """Two blocks of one shape stay as they are."""
    a, b = lhs.type, rhs.type
    if a.is_block() and b.is_block() and a.known is b.known:
        return lhs, rhs
    return otherwise(self, lhs, rhs)


PLAIN = {id(t) for t in (core.int32, core.int64, core.float32, core.float64)}  # whose results have their own type
WHOLE = {id(core.int32), id(core.int64)}


@functools.cache
def same_everywhere(value: float, dtype: Any, lengths: tuple[int, ...]) -> Any:
    """A number as a block, or as a tensor of one number; nobody may write into it."""
    data = interpreter.np.full(lengths, value if value else 0, numpy_type(dtype))
    data.flags.writeable = False
    return interpreter.TensorHandle(data, dtype)


def as_one_of(tensor: Any, value: Any) -> Any:
    """A Python number in the type and shape of a tensor; ``None`` where Triton would think about its type."""
    dtype = tensor.dtype
    if type(value) is int and -(2**31) <= value < 2**31 if id(dtype) in WHOLE else type(value) in (int, float):
        lengths = tensor.handle.data.shape
        return core.tensor(same_everywhere(value, dtype, lengths), tensor.type)
    return None


def agreed(
    self: Any, lhs: Any, rhs: Any, lhs_ptr: bool = False, rhs_ptr: bool = False, arithmetic: bool = True,
    divide: bool = False, otherwise: Any = TritonSemantic.binary_op_type_checking_impl,
) -> Any:  # fmt: skip
    """Two operands of one type and shape: most have one type already, or are a pointer and an offset, or a number."""
    a, b = type(lhs) is core.tensor, type(rhs) is core.tensor
    if a and b:
        one, other = lhs.dtype, rhs.dtype
        if id(other) in PLAIN and (one is other or (lhs_ptr and one.is_ptr() and id(other) in WHOLE)):
            return self.broadcast_impl_value(lhs, rhs)
    elif arithmetic and (a or b) and id((lhs if a else rhs).dtype) in PLAIN:
        number = as_one_of(lhs, rhs) if a else as_one_of(rhs, lhs)
        if number is not None:
            return (lhs, number) if a else (number, rhs)
    return otherwise(self, lhs, rhs, lhs_ptr, rhs_ptr, arithmetic, divide)


def unwrapped(value: Any, otherwise: Any = core._unwrap_if_constexpr) -> Any:
    return value if type(value) is core.tensor else otherwise(value)


def cast(self: Any, tensor: Any, to: Any, rounding: Any = None, otherwise: Any = TritonSemantic.cast) -> Any:
    return tensor if tensor.dtype is to.scalar else otherwise(self, tensor, to, rounding)


def start_handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
    self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr


interpreter._patch_lang_tensor, interpreter._patch_lang = index_too, patch_once
interpreter._patch_builtin = patch_members
core.block_type.__init__, core.tensor.__init__ = start_type, start_tensor
core.block_type.name = property(lambda self: f"<{self.shape}, {self.element_ty}>")
TritonSemantic.broadcast_impl_value, TritonSemantic.binary_op_type_checking_impl = broadcast, agreed
TritonSemantic.cast, core._unwrap_if_constexpr = cast, unwrapped
interpreter.TensorHandle.__init__ = start_handle

numpy_type = functools.cache(interpreter._get_np_dtype)
ADDRESS = interpreter.np.dtype("uint64")
interpreter._get_np_dtype = lambda t: ADDRESS if t.scalar.is_ptr() else numpy_type(t.scalar)
# Its check for overflow computes everything twice, and says nothing unless it debugs.
builder = interpreter.interpreter_builder
builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)
