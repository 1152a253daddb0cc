"""The kernels run on the GPU where there is one, else on the CPU under Triton's interpreter."""

import functools
import importlib.util
import os
from dataclasses import replace

import pytest
import torch

TRITON = importlib.util.find_spec("triton") is not None
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if TRITON and DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is first imported: its own functions look at it, too
    import triton.runtime.interpreter as interpreter

    _patch = interpreter._patch_lang_tensor

    def _patch_with_index(tensor, scope):
        """Loop bounds are arrays of one element, which newer NumPy no longer turns into an int by itself."""
        _patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = _patch_with_index

    # Most of the interpreter's time is its own bookkeeping; less of it is less to wait for, and the same numbers.
    _patch_language = interpreter._patch_lang
    _patched: set[int] = set()  # by whose names the language is known in the launch that is going on

    def _patch_once(fn):
        """Replace the language's functions once a launch; most functions that a kernel calls find them replaced."""
        names = {id(v) for v in fn.__globals__.values() if v is interpreter.tl or v is interpreter.tl.core}
        if names <= _patched:
            return None
        scope = _patch_language(fn)
        if not _patched:  # the kernel's own, which is the only one that is taken back
            restore = scope.restore
            scope.restore = lambda: (_patched.clear(), restore())
        _patched.update(names)
        return scope

    interpreter._patch_lang = _patch_once

    _numpy_type = functools.cache(interpreter._get_np_dtype)
    _address = interpreter.np.dtype("uint64")
    interpreter._get_np_dtype = lambda t: _address if t.scalar.is_ptr() else _numpy_type(t.scalar)
    _builder = interpreter.interpreter_builder
    # Its check for overflow computes everything twice, and says nothing unless it debugs.
    _builder.options = replace(_builder.options, sanitize_overflow=_builder.options.debug)


@pytest.fixture
def device():
    if not TRITON:
        pytest.skip("triton is not installed")
    return DEVICE


FENCE = 2**15  # numbers before and behind a tensor: more than a tile can miss it by


@pytest.fixture
def draw(device):
    """``draw(*shape)``: standard normal float32 numbers on the device, the same in every run.

    Every tensor lies between fences of nan: what is read there by mistake shows in the results, and what is written
    there fails the test.
    """
    generator, drawn = torch.Generator().manual_seed(20230723), []

    def fenced(*shape):
        numbers = torch.randn(*shape, generator=generator)
        fence = torch.full((FENCE,), float("nan"))
        whole = torch.cat([fence, numbers.flatten(), fence]).to(device)
        drawn.append(whole)
        return whole[FENCE : FENCE + numbers.numel()].view(shape)

    yield fenced
    for whole in drawn:
        assert whole[:FENCE].isnan().all(), "a kernel wrote before one of its tensors"
        assert whole[-FENCE:].isnan().all(), "a kernel wrote behind one of its tensors"
