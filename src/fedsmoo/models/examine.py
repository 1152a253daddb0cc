"""A look at a model before it is trained: whether it draws random numbers, and whether all of them can be ours.

A few samples go through the model, twice in train mode and twice in eval mode, each time from the same place of the
same noise (:mod:`fedsmoo.models.draws`). What differs then, or moves a global generator, did not draw from it.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import FedsmooWarning, first_line
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.core.random.streams import GENERATOR, generator_apart
from fedsmoo.models.base import FlatModel
from fedsmoo.models.buffers import refuse_changing, written
from fedsmoo.models.draws import Undrawn, drawing
from fedsmoo.models.hidden import (
    emptied,
    first_weights,
    foreign,
    foreign_parameters,
    frozen_copies,
    largest,
    neighbours,
    refuse_other_as_given,
    refuse_unnamed,
    refuse_written,
    spare_copy,
    stood_in,
    unmoved,
    unreplaced,
)
from fedsmoo.models.modules.generators import generators
from fedsmoo.models.modules.modes import changed_by_modes
from fedsmoo.models.modules.outputs import parts_of
from fedsmoo.models.modules.states import changing_states, states

SEEN = 8  # samples that go through
TRIES = 3  # another thread may draw meanwhile, but not every time
INSTEAD = "draw by torch.rand, torch.randn or a dropout layer in the model"


class Pass:
    """What one pass through a model shows: what goes into each module and what comes out, in the order of events.

    An event belongs to the module that is running: what goes into a module was made by the one around it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.events: list[tuple[str, list[Tensor]]] = []
        self.moved = ""  # the first module that moved a generator, and which
        self.draws = 0
        self.wrote: list[str] = []  # buffers that it changed
        self.foreign: list[list[int]] = []  # shapes of parameters that are not the module's own
        self.out = torch.empty(0)
        self.running = [f"the model {type(module).__name__}"]
        self._states = generators(module)
        self._before = {n: state() for n, state in self._states.items()}

    def note(self, values: Any) -> None:
        """Keep a copy of some tensors, and see whether a generator has moved."""
        if torch._C._functorch.peek_interpreter_stack() is not None:  # in the model's own torch.func.grad, say
            return
        self.events.append((self.running[-1], [t.detach().clone() for t in tensors(values)]))
        found = [] if self.moved else [n for n, state in self._states.items() if state() != self._before[n]]
        self.moved = self.moved or "".join(f"{self.running[-1]} draws from {n}" for n in found[:1])

    @contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Take note of every module's inputs and outputs."""

        def enter(name: str, part: nn.Module, given: Any) -> None:
            self.note(given)
            self.running.append(f"{type(part).__name__} at {name!r}" if name else self.running[0])

        def leave(out: Any) -> None:
            self.note(out)
            self.running.pop()

        held = []
        for name, part in module.named_modules():
            before = partial(lambda name, part, args, kwargs: enter(name, part, (args, kwargs)), name)
            held.append(part.register_forward_pre_hook(before, with_kwargs=True))
            held.append(part.register_forward_hook(lambda part, args, out: leave(out)))
        try:
            yield
        finally:
            for hook in held:
                hook.remove()


class Looked(NamedTuple):
    """What is looked at: a model at a vector, on samples, with a loss of its outputs."""

    model: FlatModel
    w: Tensor
    x: Tensor
    loss: Callable[[Tensor], Tensor]

    def parts(self) -> dict[str, Tensor]:
        """Return the parameters in the vector to differentiate by; nobody else has them."""
        return {n: p.detach().clone().requires_grad_() for n, p in self.model.layout.split(self.w).items()}


def examine(model: FlatModel, x: Tensor, loss: Callable[[Tensor], Tensor], other: Tensor | None = None) -> None:
    """Find out whether a model draws random numbers, and refuse one that would train otherwise than a run's seed says.

    Between two passes over ``x`` there is one over ``other`` samples, which the model must not remember. A model that
    does not fit its samples is left to the first round, which says so.
    """
    passes: dict[bool, list[Pass]] = {True: [], False: []}  # by whether in train mode
    at, model.random = Looked(model, first_weights(model, x), x, loss), False
    told: list[str] = []
    refuse_unfinite(at)
    if wrong := changed_by_modes(model.module, model.layout.shapes):
        raise FedsmooError(f"the model {type(model.module).__name__} {wrong}")
    spare = spare_copy(model.module)
    try:
        for training, made in passes.items():
            first = steady_pass(made, at, training)
            kept = states(model.module)
            forget(at if other is None else at._replace(x=other))
            refuse_difference(first, steady_pass(made, at, training))
            told += changing_states(kept, states(model.module)) if training else []
            refuse_kept(at, spare, training, first)
        refuse_changing(passes[False][-1].wrote)
        model.keep_statistics(passes[True][-1].wrote)
        last = passes[True][-1]
        told += foreign_parameters(model.module, last.foreign, last.events[-1][1])
        look_behind(at, last)
        near = [] if any(p.draws for p in passes[False]) else neighbours(model, at.w, x, passes[False][-1].out)
        model.mixes_in_evaluation, told = bool(near), told + near
    except FedsmooError:
        raise
    except Exception as e:  # the user's own code
        refuse_unseen(at, e)
    finally:
        model.train()
        model.examined = True
        model.random, model.random_in_evaluation = (any(p.draws for p in made) for made in passes.values())
    if model.random_in_evaluation:
        told.append(
            "draws random numbers in evaluation, too, and is scored by one draw of them: if that is not meant, write "
            "F.dropout(x, p, training=self.training)"
        )
    for text in told:
        warnings.warn(f"the model {type(model.module).__name__} {text}", FedsmooWarning, stacklevel=2)


def refuse_kept(at: Looked, spare: nn.Module | None, training: bool, seen: Pass) -> None:
    """Refuse a model that keeps something of the first weights it meets, and one that must have its own parameters.

    Passes of a module on the same weights cannot tell; ``spare``, a copy of it, meets others first.
    """
    if spare is None or type(at.model).forward is not FlatModel.forward:
        return
    model = at.model
    with stood_in(model, spare):
        for mode in (True,) if training else (True, False):
            forget(at._replace(w=0.9 * at.w), mode)
        refuse_difference(seen, steady_pass([], at, training))
    refuse_other_as_given(model, spare, at.w, at.x, training)


def forget(at: Looked, training: bool = True) -> None:
    """Make a pass, by default in train mode, that nobody looks at, and that the next ones must not depend on."""
    at.model.train(training)
    with drawing(at.model.module, Noise(key_of(0, "forget"))), torch.no_grad():
        at.model.forward({**at.parts(), **at.model.buffer_copies(at.w)}, at.x.clone())


def look_behind(at: Looked, seen: Pass) -> None:
    """Find out whether a model reads its own parameters although it is given others: in a backward pass it may."""
    model = at.model

    def same(names: list[str] | None = None, last: int | None = None) -> bool:
        with emptied(model.module, names):
            found = steady_pass([], at, training=True).events
        return all(alike(a[1], b[1]) for a, b in list(zip(seen.events, found, strict=True))[:last])

    if same():
        return
    if same(last=-1):  # all but the gradient
        model.recomputes = True
    if not model.recomputes or not same():
        refuse_unnamed(model.module, next(n for n in model.layout.shapes if not same([n])))


def steady_pass(made: list[Pass], at: Looked, training: bool) -> Pass:
    """Repeat a pass until no generator moves, and keep all in ``made``; refuse a model that has no such pass."""
    for _ in range(TRIES):
        with GENERATOR:
            made.append(Pass(at.model.module))
            make(made[-1], at, training)
        if not made[-1].moved:
            return made[-1]
    raise FedsmooError(f"{made[-1].moved}, which does not follow the run's seed: {INSTEAD}")


def make(seen: Pass, at: Looked, training: bool) -> None:
    """Make one pass through a model that ``seen`` watches; in train mode with its gradient."""
    model, parts, x = at.model, at.parts(), at.x.clone()
    fixed, frozen = frozen_copies(model, at.w), frozen_copies(model, at.w)
    kept, whole = model.buffer_copies(at.w), {**parts, **frozen, **model.buffer_copies(at.w)}
    model.train(training)
    with drawing(model.module, Noise(key_of(0, "examine"))) as draws, torch.enable_grad(), model.in_place(parts):
        try:
            with seen.watching(model.module), unmoved(model.module), unreplaced(model, {**parts, **frozen}):
                out = model.forward(whole, x)
            model.writes_inputs |= bool(x._version) or not torch.equal(x, at.x)
            refuse_written(model.module, {**model.layout.split(at.w), **fixed}, {**parts, **frozen})
            seen.wrote = written(model.module, kept, whole)
            seen.draws, seen.out = draws.count, out.detach().clone()
            value = at.loss(out)
            if draws.count > seen.draws:
                raise FedsmooError(f"the loss draws random numbers, which does not follow the run's seed: {INSTEAD}")
            if training:
                seen.foreign = foreign(model.module, value, parts.values())
                seen.note(torch.autograd.grad(value.sum(), list(parts.values()), materialize_grads=True))
        except Undrawn as e:
            raise FedsmooError(f"{seen.running[-1]} draws random numbers {e}") from e
        finally:
            seen.draws = draws.count


def refuse_unfinite(at: Looked) -> None:
    """Refuse a model whose weights are no numbers before the first step."""
    wrong = [n for n, value in at.model.layout.split(at.w).items() if not bool(torch.isfinite(value).all())]
    if wrong:
        raise FedsmooError(
            f"the model {type(at.model.module).__name__} holds NaN or infinite values in {wrong[0]} before training: "
            "initialise it anew"
        )


def refuse_unseen(at: Looked, why: Exception) -> None:
    """Refuse a model that can be run, but not be looked at: nobody would know what it draws."""
    model = at.model
    try:
        with torch.enable_grad(), generator_apart():
            parts = at.parts()
            torch.autograd.grad(at.loss(model.forward(parts, at.x)).sum(), list(parts.values()), materialize_grads=True)
    except Exception:  # it does not fit: the first round says so
        return
    own = "require grad" in str(why)  # torch.autograd.grad of parameters, which evaluations give as plain tensors
    hint = "take its gradients by torch.func.grad" if own else "give it as a plain nn.Module, not scripted or compiled"
    what = f"the model {type(model.module).__name__} runs, but whether it draws random numbers cannot be found out"
    raise FedsmooError(f"{what}: {type(why).__name__}: {first_line(why)}; {hint}") from why


def tensors(out: Any) -> list[Tensor]:
    """Return the tensors in what goes into a module or comes out of it."""
    if isinstance(out, Tensor):
        return [out]
    if isinstance(out, dict | list | tuple) or dataclasses.is_dataclass(out):
        return [t for part in parts_of(out).values() for t in tensors(part)]
    return []


def refuse_difference(first: Pass, second: Pass) -> None:
    """Refuse a model that answers differently from one and the same place of one stream, and name the module."""
    pairs = zip(first.events, second.events, strict=False)
    name = next((a[0] for a, b in pairs if a[0] != b[0] or not alike(a[1], b[1])), "")
    if not name and len(first.events) != len(second.events):
        name = first.events[0][0]
    if name:
        raise FedsmooError(
            f"{name} gives other outputs for the same inputs and weights: it draws random numbers of its own, or keeps "
            "something from one call for the next; draw by torch.rand or torch.randn, which follow the run's seed, and "
            "keep nothing"
        )


def alike(a: list[Tensor], b: list[Tensor]) -> bool:
    """Return whether outputs are the same, but for rounding; on a CPU in last digits.

    A function of TorchScript rounds otherwise once it is compiled. On a GPU sums of atomic additions vary.
    """
    if [t.shape for t in a] != [t.shape for t in b]:
        return False
    pairs = zip(a, b, strict=True)
    return all(bool(((s == t) | (s.isnan() & t.isnan())).all()) or nearly(s, t, s.device.type) for s, t in pairs)


def nearly(s: Tensor, t: Tensor, device: str = "cuda") -> bool:
    """Return whether tensors differ by rounding only, beside their largest number: small ones may be left of sums."""
    if not s.numel() or not s.is_floating_point():
        return torch.equal(s, t)
    rtol, least = (64 * torch.finfo(t.dtype).eps, 0.0) if device == "cpu" else (1e-3, 1e-5)
    return torch.allclose(s, t, rtol=rtol, atol=rtol * largest(t) + least, equal_nan=True)
