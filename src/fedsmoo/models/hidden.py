"""What a module does with tensors behind the back of their names: it would train as something else than it says.

A run calls a module with vectors in the places of its parameters. Code that reads a parameter elsewhere (in a list, in
a closure, in a pass that is made again in the backward pass) would find the one that the module had before the run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.random.noise import Noise, key_of
from fedsmoo.models.base import FlatModel
from fedsmoo.models.buffers import all_like, cast
from fedsmoo.models.draws import drawing
from fedsmoo.models.modules.call import call_holding
from fedsmoo.models.modules.copies import copied
from fedsmoo.models.modules.inputs import arguments
from fedsmoo.models.modules.modes import without_zeros
from fedsmoo.models.modules.outputs import picked, unrounded

REENTRANT = "CheckpointFunctionBackward"
MOVING = threading.RLock()  # of two threads that each put back what they had found, one would leave its own behind


def first_weights(model: FlatModel, x: Tensor) -> Tensor:
    """Return weights to look at a model with: those that it has, but for zeros, whose products would show nothing.

    They are on the device of its inputs, in their dtype if it is a float.
    """
    own = next((p.dtype for p in model.module.parameters() if p.is_floating_point()), torch.float32)
    return without_zeros(model.initial().to(x.device, x.dtype if x.is_floating_point() else own))


def largest(t: Tensor) -> float:
    """Return the largest size of a tensor's numbers, by which others count as the same; NaN and infinity aside."""
    return float(t.detach().abs().nan_to_num(0.0, 0.0).max()) if t.numel() else 0.0


@contextmanager
def emptied(module: nn.Module, names: Collection[str] | None = None) -> Iterator[None]:
    """Let a module's own trained parameters, or some of them, hold no numbers, inside this context."""
    own = {n: p for n, p in module.named_parameters() if p.requires_grad and (names is None or n in names)}
    kept = {n: p.detach().clone() for n, p in own.items()}
    for p in own.values():
        p.data.fill_(torch.nan)
    try:
        yield
    finally:
        for n, p in own.items():
            p.data.copy_(kept[n])


@contextmanager
def unmoved(module: nn.Module) -> Iterator[None]:
    """Refuse a pass that moves or casts modules, as ``other.to(x)`` does: under vmap PyTorch may end the process.

    A part of the module itself may be told to be where it is: nothing changes. One thread at a time does so.
    """
    here, parts = threading.get_ident(), {id(part) for part in module.modules()}

    def refuse(other: nn.Module, move: Callable[[Tensor], Tensor], *given: Any, **named: Any) -> nn.Module:
        if threading.get_ident() != here:  # another thread's module
            return plain(other, move, *given, **named)
        if id(other) in parts and all(move(t) is t for t in (*other.parameters(), *other.buffers())):
            return other
        raise FedsmooError(
            f"the model {type(module).__name__} moves or casts {type(other).__name__} in forward (.to, .float, ...), "
            "which PyTorch cannot do for several clients at once: do it before the run, or cast what goes in and out"
        )

    with MOVING:
        plain = nn.Module._apply
        nn.Module._apply = refuse  # type: ignore[assignment]
        try:
            yield
        finally:
            nn.Module._apply = plain  # type: ignore[method-assign]


def refuse_unnamed(module: nn.Module, name: str) -> None:
    """Refuse a module that reads a parameter elsewhere than in its place."""
    raise FedsmooError(
        f"the model {type(module).__name__} reads its parameter {name!r} elsewhere than as self.{name} (from a list, a "
        "closure, or .data), where it would stay as it was before training: read it by its name"
    )


def refuse_written(module: nn.Module, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    """Refuse a module whose pass changes its own parameters: gradients may be asked for at any vector."""
    for name, p in after.items():
        if p._version or not torch.equal(p.nan_to_num(), before[name].nan_to_num()):
            raise FedsmooError(
                f"the model {type(module).__name__} changes its parameter {name!r} in forward, as max_norm of "
                "nn.Embedding does, which a method would know nothing of: compute from it what the pass needs, such as "
                "weight * (max_norm / norm).clamp(max=1)"
            )


@contextmanager
def unreplaced(model: FlatModel, given: Mapping[str, Tensor]) -> Iterator[None]:
    """Refuse a pass that puts another tensor in the place of a parameter that it was given."""
    own = type(model).forward is not FlatModel.forward  # which makes a vector what the module is given

    def refuse(*_: Any) -> None:
        for name, p in model.module.named_parameters():
            if not own and name in given and p is not given[name]:
                raise FedsmooError(
                    f"the model {type(model.module).__name__} puts another tensor in the place of its parameter "
                    f"{name!r} in forward, which no run would train: compute from the parameter what the pass needs"
                )

    hook = model.module.register_forward_hook(refuse)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def stood_in(model: FlatModel, module: nn.Module) -> Iterator[None]:
    """Let another copy of the module, which has seen less, stand in for it, inside this context."""
    own, model.module, model._training = model.module, module, None
    try:
        yield
    finally:
        model.module, model._training = own, None


def spare_copy(module: nn.Module) -> nn.Module | None:
    """Return a copy of a module that no pass has gone through; ``None`` of one that cannot be copied."""
    try:
        spare: nn.Module = copied(module)
    except FedsmooError:  # whoever needs one says so
        return None
    return spare


def frozen_copies(model: FlatModel, like: Tensor) -> dict[str, Tensor]:
    """Return copies of the frozen parameters, as a pass with parameters like these reads them."""
    kept = {n: t.clone() for n, t in model.constants.items() if n not in model.buffers}
    return all_like(kept, like.device, like.dtype)


def refuse_other_as_given(model: FlatModel, spare: nn.Module, w: Tensor, x: Tensor, training: bool) -> None:
    """Refuse a module that answers otherwise with its own parameters than with others in their places."""
    parts = {n: p.detach().requires_grad_(training) for n, p in model.layout.split(w).items()}
    args, named = arguments(x.clone(), model.inputs)
    held = {**parts, **frozen_copies(model, w)}
    cast(spare, w.dtype)
    spare.to(w.device)
    with torch.no_grad():
        for name, p in spare.named_parameters():
            p.copy_(held[name])  # a start may come from a file

    def answer(function: Callable[[], Any]) -> Any:
        model.train(training)
        with drawing(spare, Noise(key_of(0, "as given"))), torch.set_grad_enabled(training):
            return function()

    with stood_in(model, spare):
        there = answer(lambda: model.forward({**parts, **model.buffer_copies(w)}, x.clone())).detach()
        try:
            out = answer(lambda: call_holding(spare, model.buffer_copies(w), args, named))
        except Exception:  # what it can do only inside a run is not its own answer
            return
    own = unrounded(picked(out, model.output, spare)).detach()
    if own.shape != there.shape or not torch.allclose(own, there, rtol=1e-2, atol=1e-3 * largest(own), equal_nan=True):
        raise FedsmooError(
            f"the model {type(model.module).__name__} answers otherwise with its own parameters than with others in "
            "their places, as code does that asks for nn.Parameter or requires_grad: ask for something else"
        )


def foreign(module: nn.Module, value: Tensor, parts: Collection[Tensor]) -> list[list[int]]:
    """Return the shapes of parameters that a loss hangs on and that are not the module's own.

    Raises:
        FedsmooError: for activation checkpointing that gives gradients to nobody but ``backward()``.
    """
    known, met, found = {id(p) for p in (*parts, *module.parameters())}, set[Any](), []
    left = deque([value.grad_fn])
    while left:
        node = left.pop()
        if node is None or node in met:
            continue
        met.add(node)
        left.extend(following for following, _ in node.next_functions)
        if type(node).__name__ == REENTRANT:
            raise FedsmooError(
                f"the model {type(module).__name__} checkpoints activations with use_reentrant=True, which gives "
                "parameters no gradient here: write use_reentrant=False"
            )
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in known:
            found.append(list(leaf.shape))
    return found


def foreign_parameters(module: nn.Module, shapes: list[list[int]], gradients: Collection[Tensor]) -> list[str]:
    """Return what is told of parameters that a module reads and that are not its own.

    Raises:
        FedsmooError: if none of its own has a gradient.
    """
    if not shapes:
        return []
    if not any(bool(g.any()) for g in gradients):
        raise FedsmooError(
            f"the model {type(module).__name__} computes with parameters that are none of its own, so that nothing "
            "would train: read layers as self.NAME, not from a closure (a lambda keeps the module it was made in)"
        )
    return [
        f"reads parameters {', '.join(map(str, shapes))} that are none of its own, and are not trained: register "
        "layers in nn.ModuleList, and read others as self.NAME, not from a closure"
    ]


def neighbours(model: FlatModel, w: Tensor, x: Tensor, whole: Tensor) -> list[str]:
    """Return what is told of a model whose answers, ``whole``, to samples depend on those evaluated with them."""
    half = len(x) // 2
    model.eval()
    try:
        with torch.no_grad():
            few = torch.cat([model.forward(model.layout.split(w), one.clone()) for one in (x[:half], x[half:])])
    except Exception:  # the user's own code, which may know one length of batches only, or cut off what all have empty
        return []
    if few.shape == whole.shape and torch.allclose(few, whole, rtol=1e-2, atol=1e-3 * largest(whole), equal_nan=True):
        return []
    kinds = nn.RNNBase | nn.MultiheadAttention
    forgot = [type(m).__name__ for m in model.module.modules() if isinstance(m, kinds) and not m.batch_first]
    hint = f"set batch_first=True in nn.{forgot[0]}" if forgot else "in eval mode let each stand for itself"
    return [
        "answers otherwise to a sample if others are evaluated with it, so that its scores depend on how samples are "
        f"put in batches: {hint}"
    ]


def refuse_other_batched(model: FlatModel, x: Tensor) -> None:
    """Refuse a hand-batched forward that answers otherwise than the module does client by client.

    It must not read parameters from the module itself, which are those of before the run. One that fails is left to the
    engine that would call it.
    """
    for training in (False,) if model.random else (False, True):
        model.train(training)
        try:
            alone, found = by_hand(model, x)
        except Exception:  # the user's own code
            break
        near = found.shape == alone.shape and torch.allclose(
            alone, found, rtol=1e-2, atol=1e-3 * largest(alone), equal_nan=True
        )
        if not near:
            raise FedsmooError(
                f"batched of the model {type(model.module).__name__} does not give what forward gives each client, in "
                f"{'train' if training else 'eval'} mode: outputs of 2 clients have the shape {list(alone.shape)}, and "
                "its parameters are those it is given, not the module's own"
            )
    model.train()


def by_hand(model: FlatModel, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of two clients with other weights and samples: one after the other, and by hand."""
    assert model.batched is not None
    w = first_weights(model, x)
    both, each = torch.stack([1.1 * w, 0.9 * w]), torch.stack([x, x.flip(0)])
    with torch.no_grad():
        alone = [model.forward(model.layout.split(v), one) for v, one in zip(both, each, strict=True)]
        return torch.stack(alone), model.batched(model.layout.split(both), each)
