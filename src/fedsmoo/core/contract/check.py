"""The contract, checked in a blink on small vectors: what a method that is not ours has to pass before it runs.

Each function of a method is called by itself, for one client (``[P]``) and for several at once (``[C, P]``), and is
watched: the rows must be what each client gives alone, names and shapes those that are declared, and nothing may be
drawn at random, looked at or changed. What breaks a rule is said with the user's file and line, all of it at once.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.blame import Place, in_brief, place_of, stack_of
from fedsmoo.core.contract.declared import declarations, definition, inner_methods
from fedsmoo.core.contract.form import CLIENTS, LIKE, SCALE, Scale, misshapen, placed, short
from fedsmoo.core.contract.inputs import EVERYBODY, FIRST, Given, ask, given
from fedsmoo.core.contract.kept import changed
from fedsmoo.core.contract.kept import kept as kept_by
from fedsmoo.core.contract.watch import Note, Seen, branches, drawing_line, first_difference, generators, watched
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.vectors import Vectors

AT_THE_SERVER = ("init", "sent", "first_contact", "aggregate")  # see one server's vectors, [P]
AT_A_CLIENT = ("start", "slope", "direction", "pull", "update", "finish")
BY_CHOICE = {"combine": "rows", "personal": "has_personal"}  # checked where the method has what they are for


def is_ours(algorithm: Algorithm) -> bool:
    """Return whether a method, and any inside it, comes with this package."""
    return type(algorithm).__module__.startswith("fedsmoo.") and all(map(is_ours, inner_methods(algorithm)))


_sound: set[tuple[type, str]] = set()


def refuse_unsound(algorithm: Algorithm, run: Scale | None = None) -> None:
    """Refuse a method of a user's that breaks the contract, with a line for each finding; once for each method.

    A method that fails on small vectors may be made for the model of a run, such as one with a mask for it: it is tried
    on vectors as the ``run`` has them, and waits for that where they are not known yet.
    """
    if is_ours(algorithm):
        return
    options = algorithm.options()
    key = (type(algorithm), repr(options))
    if key in _sound:
        return
    found = findings(algorithm)
    if any(re.search(r"\d+ in \w+: (Runtime|Index|Value)Error", line) for line in found):
        if run is None:
            return
        found = findings(algorithm, run)
    if found:
        raise FedsmooError("\n".join(found))
    if not any(hasattr(v, "shape") for v in options.values()):  # long tensors are printed in part
        _sound.add(key)


def findings(algorithm: Algorithm, scale: Scale | None = None) -> list[str]:
    """Return all that breaks the contract, a line each; nothing if the method is sound."""
    algorithm, token = algorithm.at(0), SCALE.set(scale or Scale())
    try:
        found = declarations(algorithm)
        if not found:
            combine, personal = ((name,) * bool(getattr(algorithm, has)) for name, has in BY_CHOICE.items())
            found = [note for name in (*AT_THE_SERVER, *combine) for note in at_the_server(algorithm, name)]
            found += [note for name in (*AT_A_CLIENT, *personal) for note in at_a_client(algorithm, name)]
        return list(dict.fromkeys(f"{place}: {text}" for place, text in found))
    finally:
        SCALE.reset(token)


def call(algorithm: Algorithm, name: str, x: Given) -> Seen:
    """Call a function of the method and watch what it does."""
    return watched(lambda: ask(algorithm, name, x), x.named)


def at_the_server(algorithm: Algorithm, name: str) -> list[Note]:
    """Return what is wrong with a function that sees the vectors of one server."""
    found, _ = by_itself(algorithm, name)
    return found or wrong_dtype_or_device(algorithm, name, FIRST)


def at_a_client(algorithm: Algorithm, name: str) -> list[Note]:
    """Return what is wrong with a function of one client, or of several at once."""
    found, alone = by_itself(algorithm, name)
    if found:
        return found
    asked = 0
    rows = [alone, *(call(algorithm, name, given(algorithm, c)) for c in range(1, CLIENTS))]
    for wide in (False, True):
        x = given(algorithm, EVERYBODY, wide=wide)
        seen = call(algorithm, name, x)
        asked += len(x.grad.losses)
        found += broken(algorithm, name, seen)
        found += [] if found else misshapen(algorithm, name, seen.result, CLIENTS, returned(algorithm, name, seen))
        for c, one in enumerate(rows):
            found = found or broken(algorithm, name, one) or other_rows(algorithm, name, seen, one, c)
    if name == "direction" and not asked and not found:
        found.append(Note(definition(algorithm, name), "never asks for a gradient, grad(w), which gives a step's loss"))
    return found or wrong_dtype_or_device(algorithm, name, EVERYBODY)


def by_itself(algorithm: Algorithm, name: str) -> tuple[list[Note], Seen]:
    """Return what is wrong with a function called twice for one client; and the first call."""
    x, before, fields = given(algorithm, FIRST), generators(), dict(vars(algorithm))
    copies = {n: v.clone() for n, v in x.named.items()}
    first = call(algorithm, name, x)
    found, after = broken(algorithm, name, first), generators()
    whose = [w for w in before if before[w] != after[w]]
    kept = vars(algorithm).keys() != fields.keys() or any(vars(algorithm)[k] is not v for k, v in fields.items())
    texts = [
        f"draws from {w} global generator, so that no two runs agree: draw by rnd.normal or rnd.uniform, which follow "
        "the seed, or not at all"
        for w in whose
    ]
    texts += [f"changes its input {n}: return a new vector instead" for n, v in x.named.items() if differ(v, copies[n])]
    texts += ["keeps something on the method itself: what lasts goes into own or server"] * kept
    if texts and not found:
        source = drawing_line(lambda: ask(algorithm, name, x)) if whose else None
        found = [Note(source or returned(algorithm, name, first)(), text) for text in texts]
    found = found or misshapen(algorithm, name, first.result, None, returned(algorithm, name, first))
    before_it = kept_by(algorithm)
    found = found or two_answers(algorithm, name, first, call(algorithm, name, given(algorithm, FIRST)))
    for where in [] if found else changed(before_it, kept_by(algorithm)):
        text = f"keeps something in {where} from one call for the next: what lasts goes into own, local or server"
        found.append(Note(returned(algorithm, name, first)(), f"{text}; to record values, use a callback"))
    return found, first


def two_answers(algorithm: Algorithm, name: str, first: Seen, second: Seen) -> list[Note]:
    """Return the line to blame if the same question got two answers."""
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
    """Return the line to blame if a client of several at once is not what it is alone."""
    a, b = tensors(several.result), tensors(one.result)
    pairs = [(x.expand(CLIENTS, *y.shape)[c], y) for x, y in zip(a, b, strict=False)]
    if len(a) == len(b) and not any(differ(x, y, SCALE.get().tolerance) for x, y in pairs):
        return []
    place = first_difference(several.log, one.log, c, SCALE.get().tolerance) or returned(algorithm, name, one)()
    text = (
        "a client of several at once, [C, P], is not what it is alone, [P]: take norms, sums and means over the last "
        "axis and keep it, as norm and unit do (dim=-1, keepdim=True)"
    )
    return [Note(place, text)]


def wrong_dtype_or_device(algorithm: Algorithm, name: str, client: int | None) -> list[Note]:
    """Check that results have the dtype and device of the inputs, with float32 and with another device."""
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
    """Return what was noted during a call, and what it raised."""
    notes = [n for n in seen.notes if name != "combine" or "the value of a vector" not in n.text]  # it has one server
    found = [Note(place or definition(algorithm, name), text) for place, text in notes]
    if seen.error is None:
        return found
    place: Place | str = place_of(stack_of(seen.error)) or definition(algorithm, name)
    text = in_brief(seen.error)
    if isinstance(seen.error, FedsmooError):  # which may name its line itself, such as that of a loss
        said = re.fullmatch(r"(\S+:\d+ in \S+): (.*)", str(seen.error), re.DOTALL)
        place, text = said.groups() if said else (place, str(seen.error))
    if "Boolean value of Tensor" in text:
        text = branches("bool")
    elif "converted to Scalar" in text or "converted to Python scalars" in text:
        text = branches("item")
    elif "no vector named" in text:
        text = f"reads what is not declared for it: {text.partition(': ')[2]}"
    return found if place in [n.place for n in found] else [*found, Note(place, text)]


def returned(algorithm: Algorithm, name: str, seen: Seen) -> Any:
    """Return how to find the line at which a function returned, if a user wrote it: most calls never need it."""
    return lambda: seen.profile.returned.get(name) or definition(algorithm, name)


def values(result: Any) -> list[Any]:
    """Return all vectors, and numbers, in what a function returned."""
    parts = result if isinstance(result, tuple) else (result,)
    return [v for p in parts if p is not None for v in ([x for _, x in p.items()] if isinstance(p, Vectors) else [p])]


def tensors(result: Any) -> list[Tensor]:
    """Return the same, numbers as tensors."""
    return [v if isinstance(v, Tensor) else placed(torch.tensor([v]), None) for v in values(result)]


def differ(a: Tensor, b: Tensor, tolerance: float = 0.0) -> bool:
    return a.shape != b.shape or not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
