"""What a method does with the tensors it is given, seen operator by operator, with the user's line of each."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedsmoo.core.blame import Place, calling_frames, is_users, place_of

# How Python reads numbers out of a tensor, in words.
READS = {"__bool__": "bool", "__float__": "float", "__int__": "int", "__index__": "int", "__array__": "numpy"}
COPIES = ("tolist", "numpy", "__array__")  # which read memory without an operator
LARGE = 100_000  # numbers: more are not kept to compare
MAKERS = ("zeros", "ones", "full", "empty", "tensor", "arange", "eye", "linspace", "from_numpy")
CLOCKS = {"time", "datetime", "posix", "nt", "_random", "random"}  # modules whose answers change from call to call


class Note(NamedTuple):
    """A rule broken, and where: a line, or what else is known of it."""

    place: Place | str | None
    text: str


class Step(NamedTuple):
    """An operator that ran, and copies of what came out."""

    place: Place | None
    name: str
    out: list[Tensor]


def message_of_read(word: str) -> str:
    """Return the message for a method that reads a number out of a tensor; ``word`` says how."""
    does = "branches on the value of a vector" if word == "bool" else "reads the value of a vector"
    return (
        f"{does} ({word} of a tensor): each client of a batch has its own; use torch.where, clamp, norm and other "
        "arithmetic on tensors"
    )


class Watch(TorchDispatchMode):
    """Notes numbers that are looked at, random draws, and changes of the given tensors; keeps a log of operators."""

    def __init__(self, given: dict[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given = {v.untyped_storage().data_ptr(): name for name, v in given.items() if v.device.type != "meta"}
        self.notes: list[Note] = []
        self.log: list[Step] = []
        self.made: dict[int, Place | None] = {}  # tensors made without a device, by their memory
        self.alive: list[Tensor] = []  # those: else their memory would be used again, for others
        self.word = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled, and PyTorch's compiler takes seconds to import."""
        return False

    def note(self, text: str) -> None:
        self.notes.append(Note(place_of(calling_frames()), text))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            self.note(
                f"draws at random from PyTorch's global generator ({name}), so that no two runs agree: draw by "
                "rnd.normal or rnd.uniform, which follow the seed, or not at all"
            )
        if self._looks(func, name, args):
            self.note(message_of_read(READS.get(self.word, self.word or name)))
        if func._schema.is_mutable:
            self._writes(func, name, args, kwargs)
        out = func(*args, **kwargs)
        made = out if isinstance(out, tuple | list) else (out,)
        copies = [v.detach().clone() for v in made if isinstance(v, Tensor) and v.numel() < LARGE]
        self.log.append(Step(place_of(calling_frames()), name, copies))
        return out

    def _looks(self, func: Any, name: str, args: Any) -> bool:
        if self.word == "one_hot":  # which looks whether labels are some
            return False
        if name.startswith("index"):  # by a mask, as many numbers as it has
            masks = args[1] if len(args) > 1 and isinstance(args[1], tuple | list) else ()
            return name == "index" and any(isinstance(i, Tensor) and i.dtype == torch.bool for i in masks)
        return bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags))

    def _writes(self, func: Any, name: str, args: Any, kwargs: Any) -> None:
        for k, spec in enumerate(func._schema.arguments):
            if spec.alias_info is None or not spec.alias_info.is_write:
                continue
            value = args[k] if k < len(args) else kwargs.get(spec.name)
            for v in value if isinstance(value, tuple | list) else (value,):
                if isinstance(v, Tensor) and v.untyped_storage().data_ptr() in self.given:
                    what = self.given[v.untyped_storage().data_ptr()]
                    self.note(
                        f"changes its input {what} in place ({name}), which others still read: return a new vector, "
                        "such as w + d for w.add_(d)"
                    )


class CallNames(TorchFunctionMode):
    """Tells a watch which Python function is called: operators have other names, or there is none for it."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before, self.watch.word = self.watch.word, getattr(func, "__name__", "")
        if getattr(func, "namespace", "aten") != "aten":
            import_compiler()
        try:
            if self.watch.word in COPIES:
                self.watch.note(message_of_read(READS.get(self.watch.word, self.watch.word)))
            out = func(*args, **(kwargs or {}))
            if self.watch.word in MAKERS and "device" not in (kwargs or {}):
                self.watch.made[out.untyped_storage().data_ptr()] = place_of(calling_frames())
                self.watch.alive.append(out)
            return out
        finally:
            self.watch.word = before


class Profile:
    """Where the user's functions returned, and where they called a clock or a generator of random numbers."""

    def __init__(self) -> None:
        self.returned: dict[str, Place] = {}
        self.sources: list[Note] = []

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "return" and is_users(code.co_filename, code.co_name):
            self.returned[code.co_name] = Place(code.co_filename, frame.f_lineno, code.co_name)
        elif event == "c_call":
            module = getattr(arg, "__module__", None) or type(getattr(arg, "__self__", None)).__module__
            if module in CLOCKS:
                self.sources.append(Note(place_of(calling_frames()), f"{module}.{arg.__name__}"))


class Observation(NamedTuple):
    """What was seen of one call: its result or error, the rules it broke, and the operators it ran."""

    result: Any
    error: Exception | None
    notes: list[Note]
    log: list[Step]
    profile: Profile
    made: dict[int, Place | None]


def generator_states() -> dict[str, Any]:
    """Return the states of the global generators of random numbers."""
    state: Any = np.random.get_state(legacy=False)
    return {
        "numpy's": (state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"]),
        "Python's": random.getstate(),
        "PyTorch's": torch.get_rng_state().numpy().tobytes(),
    }


def set_profiler(profiler: Any) -> None:
    """Let Python call a profiler again: a function, or one of :mod:`cProfile`, which is told to go on."""
    if profiler is None or callable(profiler):
        sys.setprofile(profiler)
    else:
        profiler.enable()  # with the options that it had


def import_compiler() -> None:
    """Import PyTorch's compiler, as the first call of an operator such as our noise does, without a profiler.

    A profiler is called for each of its hundred thousand functions, which would take seconds.
    """
    before = sys.getprofile()
    sys.setprofile(None)
    try:
        importlib.import_module("torch._dynamo")
    finally:
        set_profiler(before)


def observe(call: Callable[[], Any], given: dict[str, Tensor]) -> Observation:
    """Return the outcome of a call whose inputs are ``given``."""
    watch, profile, before = Watch(given), Profile(), sys.getprofile()
    result, error = None, None
    try:
        with watch, CallNames(watch):
            sys.setprofile(profile)
            try:
                result = call()
            finally:
                set_profiler(before)
    except Exception as e:  # the user's own code
        error = e
    return Observation(result, error, watch.notes, watch.log, profile, watch.made)


def drawing_line(call: Callable[[], Any]) -> Place | None:
    """Return the user's line during which a global generator of random numbers moves on, found line by line."""
    before, state, last, guilty = sys.gettrace(), generator_states(), None, None

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal last, guilty
        if not is_users(frame.f_code.co_filename, frame.f_code.co_name):
            return None
        if guilty is None and generator_states() != state:
            guilty = last
        last = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        return trace

    sys.settrace(trace)
    try:
        call()
    except Exception:  # it is known that it does not fail when left alone
        return None
    finally:
        sys.settrace(before)
    return guilty


def first_difference(
    a: Iterable[Step], b: Iterable[Step], row: int | None = None, tolerance: float = 1e-12
) -> Place | None:
    """Return the line whose operator differs between two logs; ``row`` is the client of ``a`` whose log ``b`` is."""
    for one, other in zip(a, b, strict=False):
        if one.name != other.name or len(one.out) != len(other.out):
            return None
        for x, y in zip(one.out, other.out, strict=True):
            if row is not None and x.dim() == y.dim() + 1 and len(x) > row:
                x = x[row]
            if x.shape != y.shape or not torch.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True):
                return one.place
    return None
