"""What the functions of a method return: names, shapes and types as they are declared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.blame import Place
from fedsmoo.core.contract.watch import Note
from fedsmoo.core.vectors import Vectors

CLIENTS = 3


class Scale(NamedTuple):
    """What vectors a method is checked on: small ones, or those of a run for a method that fits no others."""

    size: int = 7
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")
    classes: int = 3  # outputs of the model
    features: int = 4  # numbers that its last layer reads

    @property
    def samples(self) -> int:
        """How many samples a batch has: a number that is no other length."""
        return next(n for n in (5, 8, 11) if n not in (self.classes, self.features))

    @property
    def small(self) -> Scale:
        """Vectors as small as ever, of a model with as many outputs and features."""
        return Scale(classes=self.classes, features=self.features)

    @property
    def tolerance(self) -> float:
        """What rounding may make: a method may divide differences of losses by a thousandth."""
        return 1e-8 if self.dtype == torch.float64 else 1e-4


SCALE: ContextVar[Scale] = ContextVar("SCALE", default=Scale())  # noqa: B039 (never changed)


@contextmanager
def at_scale(scale: Scale) -> Iterator[None]:
    """Make inputs, and judge results, at this scale inside this context."""
    token = SCALE.set(scale)
    try:
        yield
    finally:
        SCALE.reset(token)


def to_scale(v: Tensor) -> Tensor:
    """Return a tensor in the type, and on the device, of the scale in force."""
    scale = SCALE.get()
    return v.to(scale.device, scale.dtype)


LIKE = "make tensors from an input, as torch.zeros_like(w) does"


def wrong_form(
    a: Algorithm, name: str, result: Any, clients: int | None, where: Callable[[], Place | str]
) -> list[Note]:
    """Return which names, shapes and types of a result are not those declared; ``where`` finds the line to blame."""
    server, mine = {"down": a.down, "server": a.server}, {"own": a.own, "local": a.local}
    forms: dict[str, list[Any]] = {
        "init": [server], "aggregate": [server], "sent": [{"down": a.down}], "first_contact": [{"own": a.own}],
        "start": [Tensor], "pull": [Tensor], "slope": [Tensor, mine], "direction": [Tensor, mine],
        "update": [Tensor, mine], "combine": [{"rows": a.rows}], "personal": [Tensor],
        "finish": [{"own": a.own}, {"up": a.up}],
    }  # fmt: skip
    form = forms[name]
    if name in ("pull", "personal") and result is None:
        return []
    parts = result if isinstance(result, tuple) else (result,)
    if len(parts) != len(form):
        return [Note(where(), f"returns {type_in_words(result)}, but must return {form_in_words(form)}")]
    texts: list[str] = []
    for part, want in zip(parts, form, strict=True):
        if not isinstance(part, Tensor if want is Tensor else Vectors):
            return [Note(where(), f"returns {type_in_words(result)}, but must return {form_in_words(form)}")]
        left = {"finish": a.local, "aggregate": tuple(a.masks)}.get(name, ())  # may be left in it, and is forgotten
        spare = left if want is not Tensor and "up" not in want else ()
        texts += (
            wrong_tensor(part, clients) if isinstance(part, Tensor) else wrong_vectors(a, part, want, spare, clients)
        )
    place = where() if texts else ""
    inherited = isinstance(place, Place) and place.function != name  # then the place is the class
    return [Note(place, f"{name} {text}" if inherited else text) for text in texts]


def wrong_tensor(v: Tensor, clients: int | None) -> list[str]:
    """Return what is wrong with a model or a direction; of several clients it may be one for all."""
    size = SCALE.get().size
    allowed = [(size,)] if clients is None else [(size,), (clients, size)]
    if tuple(v.shape) in allowed:
        return wrong_type("a tensor", v)
    return [f"returns a tensor of shape {shape_in_letters(v)}, but must return one of shape {axes(clients, 'P')}"]


def wrong_vectors(
    a: Algorithm, v: Vectors, want: dict[str, Any], spare: Iterable[str], clients: int | None
) -> list[str]:
    """Return what is wrong with named vectors."""
    names, places = [n for group in want.values() for n in group], " or ".join(want)
    texts = [f"does not return {n!r}, which {p} declares" for p, ns in want.items() for n in ns if n not in v.names()]
    texts += [f"returns {n!r}, which is not in {places}" for n in v.names() if n not in (*names, *spare)]
    for n, part in v.items():
        last = a.length(n, SCALE.get().size)
        if not isinstance(part, Tensor):
            if not (n in a.scalars and isinstance(part, int | float)):
                texts.append(f"returns {n} as {type_in_words(part)}, but it must be a tensor")
        elif n in names and tuple(part.shape) != (last,) * (clients is None) + (clients, last) * (clients is not None):
            expand = ": write .expand_as(w)" if clients and tuple(part.shape) == (SCALE.get().size,) else ""
            hint = expand or (": a number goes into scalars" if part.shape[-1:] == (1,) else "")
            other = tuple(part.shape[:-1]) == (clients,) * (clients is not None) and n not in a.sizes
            hint = hint or (": another length than the model's goes into sizes" if other else "")
            must = axes(clients, "P" if last == SCALE.get().size and n not in a.sizes else str(last))
            shown = shape_in_letters(part, alone=clients is None)
            texts.append(f"returns {n} of shape {shown}, but it must be of shape {must}{hint}")
        elif n in names:
            texts += wrong_type(n, part)
    return texts


def wrong_type(what: str, v: Tensor) -> list[str]:
    want = SCALE.get().dtype
    wrong = f"returns {what} in {dtype_name(v.dtype)} where its inputs are {dtype_name(want)}: {LIKE}"
    return [] if v.dtype == want else [wrong]


def type_in_words(value: Any) -> str:
    """Return what something is, in a few words."""
    if isinstance(value, tuple):
        return f"({', '.join(map(type_in_words, value))})"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"


def form_in_words(form: list[Any]) -> str:
    words = ", ".join("a tensor" if f is Tensor else f"Vectors of {' and '.join(f)}" for f in form)
    return words if len(form) == 1 else f"({words})"


def axes(clients: int | None, last: str) -> str:
    return f"[{last}]" if clients is None else f"[C, {last}]"


def shape_in_letters(v: Tensor, alone: bool = False) -> str:
    """Return a shape in the contract's letters; of one client ``alone`` a single axis is not that of clients.

    >>> [shape_in_letters(torch.zeros(shape)) for shape in ((3, 7), (7,), (2, 1))]
    ['[C, P]', '[P]', '[2, 1]']
    """
    letters = {SCALE.get().size: "P"} if alone and v.dim() == 1 else {SCALE.get().size: "P", CLIENTS: "C"}
    return "[" + ", ".join(letters.get(n, str(n)) for n in v.shape) + "]"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
