"""The contract, checked in a blink on small vectors: what a method that is not ours has to pass before it runs.

Each function of a method is called by itself, for one client (``[P]``) and for several at once (``[C, P]``), and is
watched: the rows must be what each client gives alone, names and shapes those that are declared, and nothing may be
drawn at random, looked at or changed. What breaks a rule is said with the user's file and line, all of it at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm, Gradient, Round
from fedsmoo.core.blame import in_brief, place_of, stack_of
from fedsmoo.core.contract.declared import declarations, definition, inner_methods
from fedsmoo.core.contract.form import CLIENTS, LIKE, SIZE, misshapen, short
from fedsmoo.core.contract.watch import Note, Seen, branches, drawing_line, first_difference, generators, watched
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.streams import torch_stream
from fedsmoo.core.vectors import Vectors

LR, STEPS = 0.1, (2, 3, 4)
FIRST, EVERYBODY = 0, None
AT_THE_SERVER = ("init", "sent", "first_contact", "aggregate")  # see one server's vectors, [P]
AT_A_CLIENT = ("start", "slope", "direction", "pull", "finish")


def is_ours(algorithm: Algorithm) -> bool:
    """Whether a method, and any inside it, comes with this package."""
    return type(algorithm).__module__.startswith("fedsmoo.") and all(map(is_ours, inner_methods(algorithm)))


_sound: set[tuple[type, str]] = set()


def refuse_unsound(algorithm: Algorithm) -> None:
    """Refuse a method of a user's that breaks the contract, with a line for each finding; once for each method."""
    if is_ours(algorithm):
        return
    key = (type(algorithm), repr(algorithm.options()))
    if key in _sound:
        return
    if found := findings(algorithm):
        raise FedsmooError("\n".join(found))
    _sound.add(key)


def findings(algorithm: Algorithm) -> list[str]:
    """All that breaks the contract, a line each; nothing if the method is sound."""
    found = declarations(algorithm)
    if not found:
        for name in AT_THE_SERVER:
            found += at_the_server(algorithm, name)
        for name in AT_A_CLIENT:
            found += at_a_client(algorithm, name)
    return list(dict.fromkeys(f"{place}: {text}" for place, text in found))


class Guarded(Vectors):
    """Vectors whose names cannot be given to others."""

    def __init__(self, **parts: Tensor) -> None:
        super().__init__(**parts)
        object.__setattr__(self, "_sealed", True)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_sealed" in vars(self):
            raise AttributeError(f"{name} cannot be set on vectors that are given: write .replace({name}=...)")
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Given:
    """What the functions of a method are called with, in the middle of a run: no vector is zero."""

    srv: Vectors
    mean: Vectors
    down: Vectors
    me: Vectors
    w: Tensor
    rnd: Round
    grad: Gradient

    @property
    def named(self) -> dict[str, Tensor]:
        parts = {"srv": self.srv, "mean": self.mean, "down": self.down, "me": self.me}
        return {"w": self.w} | {f"{p}.{n}": v for p, vs in parts.items() for n, v in vs.items()}


def given(algorithm: Algorithm, client: int | None, to: torch.dtype = torch.float64, wide: bool = False) -> Given:
    """The inputs of one client, or of all; ``wide``: each with its own copy of what was sent, as in a pack."""

    def rows(names: Iterable[str], place: int) -> Vectors:
        found = drawn(algorithm, names, place, CLIENTS).map(lambda v: v.to(to))
        return sealed(found if client is EVERYBODY else found.map(itemgetter(client)))

    def once(names: Iterable[str], place: int) -> Vectors:
        return sealed(drawn(algorithm, names, place).map(lambda v: v.to(to)))

    down = once(algorithm.down, 1)
    if wide and client is EVERYBODY:
        down = sealed(down.map(lambda v: v.expand(CLIENTS, -1).clone()))
    steps = torch.tensor(STEPS, dtype=to)[:, None] if client is EVERYBODY else STEPS[client]
    srv = once((*algorithm.down, *algorithm.server), 2)
    # Whatever a method keeps on its server may be a square; the model may be anything.
    srv = sealed(Vectors(**{n: v if n == "w" else v.abs() for n, v in srv.items()}))
    mine, w = rows((*algorithm.own, *algorithm.local), 4), rows(("w",), 5).w
    return Given(srv, once(algorithm.up, 3), down, mine, w, Round(1, LR, steps, 0.5), quadratic(client, to))


def sealed(v: Vectors) -> Vectors:
    return Guarded(**dict(v.items()))


def drawn(algorithm: Algorithm, names: Iterable[str], place: int, clients: int | None = None) -> Vectors:
    """Named vectors, or numbers where the method declares such, in float64."""
    lead, generator = () if clients is None else (clients,), torch_stream(0, "contract", place)
    sizes = {n: (*lead, 1 if n in algorithm.scalars else SIZE) for n in names}
    return Vectors(**{n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in sizes.items()})


def quadratic(client: int | None, to: torch.dtype = torch.float64) -> Gradient:
    """The gradient of a quadratic of one client, or of all of them at once."""
    a = 1.0 + torch.arange(CLIENTS * SIZE, dtype=torch.float64).reshape(CLIENTS, SIZE) / 10
    b = torch.randn((CLIENTS, SIZE), generator=torch_stream(0, "contract", 9), dtype=torch.float64)
    a, b = (v.to(to) if client is EVERYBODY else v[client].to(to) for v in (a, b))
    return lambda v: a * (v - b)


def ask(algorithm: Algorithm, name: str, x: Given) -> Any:
    """A function of a method, called with what an engine would give it."""
    arguments = {
        "init": (x.w,),
        "sent": (x.srv,),
        "first_contact": (x.down,),
        "aggregate": (x.srv, x.mean, x.rnd),
        "start": (x.down, x.me),
        "slope": (x.w, x.grad, x.down, x.me),
        "direction": (x.w, x.grad, x.down, x.me),
        "pull": (x.w, x.down),
        "finish": (x.w, x.down, x.me, x.rnd),
    }[name]
    return getattr(algorithm, name)(*arguments)


def call(algorithm: Algorithm, name: str, x: Given) -> Seen:
    """The same, watched."""
    return watched(lambda: ask(algorithm, name, x), x.named)


def at_the_server(algorithm: Algorithm, name: str) -> list[Note]:
    """What is wrong with a function that sees the vectors of one server."""
    found, _ = by_itself(algorithm, name)
    return found or elsewhere(algorithm, name, FIRST)


def at_a_client(algorithm: Algorithm, name: str) -> list[Note]:
    """What is wrong with a function of one client, or of several at once."""
    found, alone = by_itself(algorithm, name)
    if found:
        return found
    asked: list[Tensor] = []
    rows = [alone, *(call(algorithm, name, given(algorithm, c)) for c in range(1, CLIENTS))]
    for wide in (False, True):
        x = given(algorithm, EVERYBODY, wide=wide)

        def grad(v: Tensor, x: Given = x) -> Tensor:
            asked.append(v)
            return x.grad(v)

        seen = call(algorithm, name, replace(x, grad=grad))
        found += broken(algorithm, name, seen)
        found += [] if found else misshapen(algorithm, name, seen.result, CLIENTS, returned(algorithm, name, seen))
        for c, one in enumerate(rows):
            found = found or broken(algorithm, name, one) or other_rows(algorithm, name, seen, one, c)
    if name == "direction" and not asked and not found:
        found.append(Note(definition(algorithm, name), "never asks for a gradient, grad(w), which gives a step's loss"))
    return found or elsewhere(algorithm, name, EVERYBODY)


def by_itself(algorithm: Algorithm, name: str) -> tuple[list[Note], Seen]:
    """What is wrong with a function called twice for one client; and the first call."""
    x, before, fields = given(algorithm, FIRST), generators(), dict(vars(algorithm))
    copies = {n: v.clone() for n, v in x.named.items()}
    first = call(algorithm, name, x)
    found, after = broken(algorithm, name, first), generators()
    whose = [w for w in before if before[w] != after[w]]
    kept = vars(algorithm).keys() != fields.keys() or any(vars(algorithm)[k] is not v for k, v in fields.items())
    texts = [
        f"draws from {w} global generator, so that no two runs agree: draw from one that is seeded from rnd.number, or "
        "not at all"
        for w in whose
    ]
    texts += [f"changes its input {n}: return a new vector instead" for n, v in x.named.items() if differ(v, copies[n])]
    texts += ["keeps something on the method itself: what lasts goes into own or server"] * kept
    if texts and not found:
        source = drawing_line(lambda: ask(algorithm, name, x)) if whose else None
        found = [Note(source or returned(algorithm, name, first)(), text) for text in texts]
    found = found or misshapen(algorithm, name, first.result, None, returned(algorithm, name, first))
    return found or two_answers(algorithm, name, first, call(algorithm, name, given(algorithm, FIRST))), first


def two_answers(algorithm: Algorithm, name: str, first: Seen, second: Seen) -> list[Note]:
    """The line to blame if the same question got two answers."""
    if found := broken(algorithm, name, second):
        return found
    a, b = tensors(first.result), tensors(second.result)
    if len(a) == len(b) and not any(differ(x, y) for x, y in zip(a, b, strict=True)):
        return []
    calls = [s for s in first.profile.sources if s.place]
    place = calls[0].place if calls else first_difference(first.log, second.log)
    what = f" (it calls {calls[0].text})" if calls else ""
    text = f"gives two answers to one question{what}: a method is a function of its inputs, without clock or chance"
    return [Note(place or returned(algorithm, name, first)(), text)]


def other_rows(algorithm: Algorithm, name: str, several: Seen, one: Seen, c: int) -> list[Note]:
    """The line to blame if a client of several at once is not what it is alone."""
    a, b = tensors(several.result), tensors(one.result)
    pairs = [(x.expand(CLIENTS, *y.shape)[c], y) for x, y in zip(a, b, strict=False)]
    if len(a) == len(b) and not any(differ(x, y, 1e-12) for x, y in pairs):
        return []
    place = first_difference(several.log, one.log, c) or returned(algorithm, name, one)()
    text = (
        "a client of several at once, [C, P], is not what it is alone, [P]: take norms, sums and means over the last "
        "axis and keep it, as norm and unit do (dim=-1, keepdim=True)"
    )
    return [Note(place, text)]


def elsewhere(algorithm: Algorithm, name: str, client: int | None) -> list[Note]:
    """In float32, and were it on another device: what a function makes must follow its inputs."""
    seen = call(algorithm, name, given(algorithm, client, torch.float32))
    found = broken(algorithm, name, seen)
    for v in [] if found else values(seen.result):
        if not isinstance(v, Tensor):
            continue  # a single number
        if v.dtype != torch.float32:
            text = f"returns {short(v.dtype)} where its inputs are float32: {LIKE}"
            found.append(Note(returned(algorithm, name, seen)(), text))
        elif v.untyped_storage().data_ptr() in seen.made:
            place = seen.made[v.untyped_storage().data_ptr()]
            text = f"returns a tensor that is on the CPU wherever its inputs are: {LIKE}"
            found.append(Note(place or returned(algorithm, name, seen)(), text))
    return found


def broken(algorithm: Algorithm, name: str, seen: Seen) -> list[Note]:
    """What was noted during a call, and what it raised."""
    found = [Note(place or definition(algorithm, name), text) for place, text in seen.notes]
    if seen.error is None:
        return found
    text, place = in_brief(seen.error), place_of(stack_of(seen.error)) or definition(algorithm, name)
    if "Boolean value of Tensor" in text:
        text = branches("bool")
    elif "converted to Scalar" in text or "converted to Python scalars" in text:
        text = branches("item")
    elif "no vector named" in text:
        text = f"reads what is not declared for it: {text.partition(': ')[2]}"
    return found if place in [n.place for n in found] else [*found, Note(place, text)]


def returned(algorithm: Algorithm, name: str, seen: Seen) -> Any:
    """How to find the line at which a function returned, if a user wrote it: most calls never need it."""
    return lambda: seen.profile.returned.get(name) or definition(algorithm, name)


def values(result: Any) -> list[Any]:
    """All vectors, and numbers, in what a function returned."""
    parts = result if isinstance(result, tuple) else (result,)
    return [v for p in parts if p is not None for v in ([x for _, x in p.items()] if isinstance(p, Vectors) else [p])]


def tensors(result: Any) -> list[Tensor]:
    """The same, numbers as tensors."""
    return [v if isinstance(v, Tensor) else torch.tensor([v], dtype=torch.float64) for v in values(result)]


def differ(a: Tensor, b: Tensor, tolerance: float = 0.0) -> bool:
    return a.shape != b.shape or not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
