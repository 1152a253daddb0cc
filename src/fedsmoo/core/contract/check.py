"""The contract, checked in a blink on small vectors: what a method that is not ours has to pass before it runs.

Each function of a method is called by itself, for one client (``[P]``) and for several at once (``[C, P]``), and is
watched: the rows must be what each client gives alone, names and shapes those that are declared, and nothing may be
drawn at random, looked at or changed. What breaks a rule is said with the user's file and line, all of it at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core.algorithm import Algorithm
from fedsmoo.core.blame import Place, in_brief, place_of, stack_of
from fedsmoo.core.contract.declared import declarations, definition, inner_methods
from fedsmoo.core.contract.form import CLIENTS, LIKE, SCALE, Scale, at_scale, dtype_name, to_scale, wrong_form
from fedsmoo.core.contract.inputs import EVERYBODY, FIRST, Inputs, call_function, make_inputs
from fedsmoo.core.contract.kept import changed_places, writable_state
from fedsmoo.core.contract.watch import (
    Note,
    Observation,
    drawing_line,
    first_difference,
    generator_states,
    message_of_read,
    observe,
)
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.vectors import Vectors

AT_THE_SERVER = ("init", "sent", "first_contact", "aggregate")  # see one server's vectors, [P]
AT_A_CLIENT = ("start", "slope", "direction", "pull", "update", "finish")


def is_ours(algorithm: Algorithm) -> bool:
    """Return whether a method, and any inside it, comes with this package."""
    return type(algorithm).__module__.startswith("fedsmoo.") and all(map(is_ours, inner_methods(algorithm)))


_sound: set[tuple[type, str]] = set()
# What is found wrong with a method that fits other vectors: a failure, or a length of its own.
MAY_FIT = re.compile(r"\d+ in \w+: (Runtime|Index|Value)Error|must be of shape \[(C, )?(?!1\])\d+\]")


def refuse_unsound(algorithm: Algorithm, run: Scale | None = None) -> None:
    """Refuse a method of a user's that breaks the contract, with a line for each finding; once for each method.

    A method that fails on small vectors may be made for the model of a run, such as one with a mask for it, or with a
    number for each class: it is tried with as many classes and features as the ``run`` has, then on vectors as it has
    them, and waits for that where they are not known yet.
    """
    if is_ours(algorithm):
        return
    options = algorithm.options()
    key = (type(algorithm), repr(options))
    if key in _sound:
        return
    found = findings(algorithm)
    fits_any = not found
    for scale in (run and run.small, run):
        if not any(map(MAY_FIT.search, found)):
            break
        if scale is None:
            return
        found = findings(algorithm, scale)
    if found:
        raise FedsmooError("\n".join(found))
    if fits_any and not any(hasattr(v, "shape") for v in options.values()):  # long tensors are printed in part
        _sound.add(key)


def findings(algorithm: Algorithm, scale: Scale | None = None) -> list[str]:
    """Return all that breaks the contract, a line each; nothing if the method is sound."""
    algorithm = algorithm.at(0)
    with at_scale(scale or Scale()):
        found = declarations(algorithm)
        if not found:
            at_server = (*AT_THE_SERVER, "combine") if algorithm.rows else AT_THE_SERVER
            at_client = (*AT_A_CLIENT, "personal") if algorithm.has_personal else AT_A_CLIENT
            found = [note for name in at_server for note in FunctionCheck(algorithm, name).at_server()]
            found += [note for name in at_client for note in FunctionCheck(algorithm, name).at_client()]
        return list(dict.fromkeys(f"{place}: {text}" for place, text in found))


@dataclass(frozen=True)
class FunctionCheck:
    """The checks of one function of a method; each returns what is wrong with it."""

    algorithm: Algorithm
    name: str

    def at_server(self) -> list[Note]:
        """Check a function that sees the vectors of one server."""
        found, _ = self.alone()
        return found or self.dtype_and_device(FIRST)

    def at_client(self) -> list[Note]:
        """Check a function of one client, or of several at once."""
        found, alone = self.alone()
        if found:
            return found
        asked = 0
        rows = [alone, *(self.observe(make_inputs(self.algorithm, c)) for c in range(1, CLIENTS))]
        for wide in (False, True):
            x = make_inputs(self.algorithm, EVERYBODY, wide=wide)
            seen = self.observe(x)
            asked += len(x.grad.losses) + len(x.grad.looked)
            found += self.violations(seen)
            found += [] if found else self.form(seen, CLIENTS)
            for c, one in enumerate(rows):
                found = found or self.violations(one) or self.row(seen, one, c)
        if self.name == "direction" and not asked and not found:
            text = "never asks for a gradient, grad(w), or a loss, grad.loss(w), which gives a step's loss"
            found.append(Note(definition(self.algorithm, self.name), text))
        found = found or (self.unequal() if x.grad.asked_more else [])
        return found or self.dtype_and_device(EVERYBODY)

    def unequal(self) -> list[Note]:
        """Check that samples which fill up the batches of other clients count for nothing."""
        several = self.observe(make_inputs(self.algorithm, EVERYBODY, unequal=True))
        alone = [self.observe(make_inputs(self.algorithm, c, unequal=True)) for c in range(CLIENTS)]
        if any(seen.error for seen in (several, *alone)):  # what fails for want of samples says so in a run
            return []
        text = (
            "counts samples that are none: of C clients at once grad.outputs and grad.features have rows for the "
            "longest batch; take means over samples by grad.mean(v, each), or give rows to a loss, grad(v, loss, rows)"
        )
        places = (note.place for c, one in enumerate(alone) for note in self.row(several, one, c))
        return [Note(place, text) for place in places][:1]

    def alone(self) -> tuple[list[Note], Observation]:
        """Check two calls for one client, and return what was seen of the first, too."""
        found, first = self.first_call()
        return found or self.form(first, None) or self.second_call(first), first

    def first_call(self) -> tuple[list[Note], Observation]:
        """Check that a call does nothing but return: it draws from no global generator and writes to nothing."""
        x, generators, fields = make_inputs(self.algorithm, FIRST), generator_states(), dict(vars(self.algorithm))
        copies = {n: v.clone() for n, v in x.named.items()}
        seen = self.observe(x)
        drawn_from = [w for w, state in generator_states().items() if state != generators[w]]
        now = vars(self.algorithm)
        texts = [
            f"draws from {w} global generator, so that no two runs agree: draw by rnd.normal or rnd.uniform, which "
            "follow the seed, or not at all"
            for w in drawn_from
        ]
        texts += [
            f"changes its input {n}: return a new vector instead" for n, v in x.named.items() if differ(v, copies[n])
        ]
        if now.keys() != fields.keys() or any(now[k] is not v for k, v in fields.items()):
            texts.append("keeps something on the method itself: what lasts goes into own or server")
        if (found := self.violations(seen)) or not texts:
            return found, seen
        source = drawing_line(lambda: call_function(self.algorithm, self.name, x)) if drawn_from else None
        return [Note(source or self.returned_at(seen), text) for text in texts], seen

    def second_call(self, first: Observation) -> list[Note]:
        """Check that the same call gives the same answer again, and leaves nothing behind for others."""
        state = writable_state(self.algorithm)
        if found := self.repeatable(first, self.observe(make_inputs(self.algorithm, FIRST))):
            return found
        kept = "from one call for the next: what lasts goes into own, local or server; to record values, use a callback"
        return [
            Note(self.returned_at(first), f"keeps something in {where} {kept}")
            for where in changed_places(state, writable_state(self.algorithm))
        ]

    def form(self, seen: Observation, clients: int | None) -> list[Note]:
        """Check names, shapes and types of what was returned."""
        return wrong_form(self.algorithm, self.name, seen.result, clients, lambda: self.returned_at(seen))

    def repeatable(self, first: Observation, second: Observation) -> list[Note]:
        """Check that the same call gives the same answer twice."""
        if found := self.violations(second):
            return found
        a, b = tensors(first.result), tensors(second.result)
        if len(a) == len(b) and not any(differ(x, y) for x, y in zip(a, b, strict=True)):
            return []
        calls = [s for s in first.profile.sources if s.place]
        place = calls[0].place if calls else first_difference(first.log, second.log)
        what = f" (it calls {calls[0].text})" if calls else ""
        text = f"gives two answers to one question{what}: a method is a function of its inputs, without clock or chance"
        return [Note(place or self.returned_at(first), text)]

    def row(self, several: Observation, one: Observation, c: int) -> list[Note]:
        """Check that client ``c`` of several at once is what it is alone."""
        a, b, tolerance = tensors(several.result), tensors(one.result), SCALE.get().tolerance
        pairs = [(x.expand(CLIENTS, *y.shape)[c], y) for x, y in zip(a, b, strict=False)]
        if len(a) == len(b) and not any(differ(x, y, tolerance) for x, y in pairs):
            return []
        place = first_difference(several.log, one.log, c, tolerance) or self.returned_at(one)
        text = (
            "a client of several at once, [C, P], is not what it is alone, [P]: take norms, sums and means over the "
            "last axis and keep it, as norm and unit do (dim=-1, keepdim=True)"
        )
        return [Note(place, text)]

    def dtype_and_device(self, client: int | None) -> list[Note]:
        """Check that results have the dtype and device of the inputs, with float32 and with another device."""
        with at_scale(SCALE.get()._replace(dtype=torch.float32)):
            seen = self.observe(make_inputs(self.algorithm, client))
        found = self.violations(seen)
        for v in [] if found else values(seen.result):
            if not isinstance(v, Tensor):
                continue  # a single number
            if v.dtype != torch.float32:
                text = f"returns {dtype_name(v.dtype)} where its inputs are float32: {LIKE}"
                found.append(Note(self.returned_at(seen), text))
            elif v.untyped_storage().data_ptr() in seen.made:
                place = seen.made[v.untyped_storage().data_ptr()]
                text = f"returns a tensor that is on the CPU wherever its inputs are: {LIKE}"
                found.append(Note(place or self.returned_at(seen), text))
        return found

    def observe(self, x: Inputs) -> Observation:
        """Call the function and watch what it does."""
        return observe(lambda: call_function(self.algorithm, self.name, x), x.named)

    def violations(self, seen: Observation) -> list[Note]:
        """Return what was noted during a call, and what it raised."""
        # A combine may look at values: it has one server.
        notes = [n for n in seen.notes if self.name != "combine" or "the value of a vector" not in n.text]
        found = [Note(place or definition(self.algorithm, self.name), text) for place, text in notes]
        if seen.error is None:
            return found
        place: Place | str = place_of(stack_of(seen.error)) or definition(self.algorithm, self.name)
        text = in_brief(seen.error)
        if isinstance(seen.error, FedsmooError):  # which may name its line itself, such as that of a loss
            said = re.fullmatch(r"(\S+:\d+ in \S+): (.*)", str(seen.error), re.DOTALL)
            place, text = said.groups() if said else (place, str(seen.error))
        if "Boolean value of Tensor" in text:
            text = message_of_read("bool")
        elif "converted to Scalar" in text or "converted to Python scalars" in text:
            text = message_of_read("item")
        elif "no vector named" in text:
            text = f"reads what is not declared for it: {text.partition(': ')[2]}"
        return found if place in [n.place for n in found] else [*found, Note(place, text)]

    def returned_at(self, seen: Observation) -> Place | str:
        """Return the line at which the function returned, if a user wrote it, or else where it is defined."""
        return seen.profile.returned.get(self.name) or definition(self.algorithm, self.name)


def values(result: Any) -> list[Any]:
    """Return all vectors, and numbers, in what a function returned."""
    parts = result if isinstance(result, tuple) else (result,)
    return [v for p in parts if p is not None for v in ([x for _, x in p.items()] if isinstance(p, Vectors) else [p])]


def tensors(result: Any) -> list[Tensor]:
    """Return what :func:`values` does, with numbers as tensors."""
    return [v if isinstance(v, Tensor) else to_scale(torch.tensor([v])) for v in values(result)]


def differ(a: Tensor, b: Tensor, tolerance: float = 0.0) -> bool:
    return a.shape != b.shape or not torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
