"""The random layers of a model, drawn from a run's own noise: the same masks in the same round, client and step.

PyTorch's layers (dropout, RReLU, attention and recurrent layers with dropout) and ``torch.rand`` and its kin end in a
few operators that ask PyTorch's generator for numbers. While :class:`Draws` is in force these are given ours. It works
below autograd, so gradients are those of PyTorch at the same masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from fedsmoo.core import FedsmooError
from fedsmoo.core.random.layers import ClientsNoise, ClientsNumbers, Numbers
from fedsmoo.core.random.noise import Noise
from fedsmoo.models.modules.process import NO_FLASH, NO_OTHERS, Setting, uncompiled

AnyNoise = Noise | ClientsNoise  # of one client, or of C at once
Given = dict[str, Any]  # an operator's arguments by name


class Undrawn(FedsmooError):
    """Random numbers that a model asks for in a way that has no place in a run's noise."""


class Draws(TorchDispatchMode):
    """Random operators draw from ``noise``, one after the other, for as long as this lasts; ``count`` says how many.

    ``ahead`` is how many counters of one client's noise they are expected to use (0: nobody knows).
    Below ``vmap`` over C clients operators are those of all of them, and so must be the noise.
    """

    def __init__(self, noise: AnyNoise, ahead: int = 0) -> None:
        super().__init__()
        self.numbers = ClientsNumbers(noise) if isinstance(noise, ClientsNoise) else Numbers(noise, ahead)
        self.count = 0
        self.operators: set[tuple[Any, str]] = set()  # that drew, and on what kind of device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the first draw would import the whole compiler, which takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        given, name = bound(func, args, kwargs or {}), func._schema.name.removeprefix("aten::")
        if draws_nothing(name, given):
            return func(*args, **(kwargs or {}))
        if name not in DRAWN or "out" in given:
            raise Undrawn(
                f"by {name}, which cannot follow the run's seed: draw them by torch.rand, randn, bernoulli, randint, "
                "randperm, multinomial or a dropout layer"
            )
        if torch._C._current_graph_task_id() != -1:  # a forward pass that is made again would draw other masks
            raise Undrawn(
                f"by {name} in its backward pass, as activation checkpointing makes dropout do: leave checkpointing "
                "out, or the random layer"
            )
        self.count += 1
        self.operators.add((func, given["self"].device.type if isinstance(given.get("self"), Tensor) else ""))
        with torch.no_grad():
            return DRAWN[name](self, given)

    def uniform(self, like: Tensor) -> Tensor:
        """Return the next numbers in (0, 1), shaped as ``like``: float32."""
        return self.numbers.uniform(like)

    def normal(self, like: Tensor) -> Tensor:
        """Return the next standard normal numbers, shaped as ``like`` and in its type."""
        return self.numbers.normal(like).to(like.dtype)

    def whole(self, like: Tensor, low: int, high: int) -> Tensor:
        """Return the next integers from ``low`` to below ``high``, from 63 bits each: int64, shaped as ``like``."""
        return self.numbers.whole(like) % (high - low) + low

    def exponential(self, like: Tensor, rate: float = 1.0) -> Tensor:
        """Return the next exponential numbers, shaped as ``like``: float32, computed in float64 as normals are."""
        return (-self.uniform(like).double().log() / rate).float()


@contextmanager
def drawing(module: nn.Module, noise: AnyNoise, ahead: int = 0) -> Iterator[Draws]:
    """:class:`Draws`, without the kernels that draw inside."""
    with as_it_was(), outside_kernels(module), Draws(noise, ahead) as draws:
        yield draws


@contextmanager
def outside_kernels(module: nn.Module) -> Iterator[None]:
    """Leave out kernels that draw inside: fused attention, and cuDNN's recurrent layers; in all threads."""
    cudnn = torch.backends.cudnn
    with ExitStack() as stack:
        stack.enter_context(NO_FLASH.taken())
        stack.enter_context(NO_OTHERS.taken())
        if cudnn.is_available() and any(isinstance(m, nn.RNNBase) and m.dropout > 0 for m in module.modules()):
            stack.enter_context(cudnn.flags(enabled=False, allow_tf32=cudnn.allow_tf32))
        stack.enter_context(uncompiled())  # a compiled module would draw in code of its own
        yield


@contextmanager
def notes_kept() -> Iterator[None]:
    """Leave PyTorch's notes of dispatch modes as they were found, by :func:`as_it_was`."""
    notes = {n: v for n, v in vars(_python_dispatch).items() if n.startswith("_is_in_") and isinstance(v, bool)}
    try:
        yield
    finally:
        vars(_python_dispatch).update(notes)
        tell = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)
        if tell is not None:  # the same note, for compiled code
            tell(notes["_is_in_any_mode_without_ignore_compile_internals"])


NOTES = Setting(notes_kept)


def as_it_was() -> AbstractContextManager[None]:
    """Leave PyTorch's notes of dispatch modes as they were found, whatever threads did inside this context.

    It notes for the whole process, not for each thread, whether a mode is in force: of two threads that enter and leave
    theirs by turns, the last one would leave behind that a mode still is.
    """
    return NOTES.taken()


def bound(func: Any, args: Any, kwargs: Any) -> Given:
    """Return the arguments of an operator by name, defaults filled in."""
    names = func._schema.arguments
    values = {a.name: a.default_value for a in names if a.has_default_value()}
    return values | dict(zip((a.name for a in names), args, strict=False)) | kwargs


def draws_nothing(name: str, given: Given) -> bool:
    """Whether an operator that may draw does not: a layer in evaluation, a dropout of 0, the choice of a kernel."""
    evaluates = given.get("train", given.get("training")) is False
    return evaluates or given.get("dropout_p", given.get("dropout")) == 0 or name == "_fused_sdp_choice"


def made(given: Given, dtype: torch.dtype | None = None) -> Tensor:
    """Return the empty tensor that a factory such as ``torch.rand`` fills: of a size, or like another tensor."""
    options = {n: given[n] for n in ("dtype", "layout", "device", "pin_memory") if given.get(n) is not None}
    if not isinstance(options.get("dtype", dtype), torch.dtype):  # a schema says its default by a number
        options["dtype"] = dtype
    if "size" in given:
        return torch.empty(given["size"], **{"dtype": dtype, **options})
    return torch.empty_like(given["self"], **options)


def uniform_(draws: Draws, a: Given) -> Tensor:
    return spread(draws, a["self"], a["from"], a["to"])


def spread(draws: Draws, t: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """``t`` filled with numbers from ``low`` to below ``high``: a coarse type must not round up to its end."""
    u = draws.uniform(t).to(t.dtype).clamp_(max=1 - torch.finfo(t.dtype).eps / 2)
    return t.copy_(u * (high - low) + low)


def bernoulli(draws: Draws, a: Given) -> Tensor:
    """Ones with the probabilities ``p``, in place or in a new tensor; of a tensor of probabilities without ``p``."""
    p = a["p"] if a.get("p") is not None else a["self"]
    if isinstance(p, float | int):
        return draws.numbers.below(a["self"], float(p)).to(a["self"].dtype)
    return (draws.uniform(a["self"]) < p).to(a["self"].dtype)


def bernoulli_(draws: Draws, a: Given) -> Tensor:
    return a["self"].copy_(bernoulli(draws, a))


def native_dropout(draws: Draws, a: Given) -> tuple[Tensor, Tensor]:
    keep = 1 - a["p"]
    mask = draws.numbers.below(a["input"], keep)
    return a["input"] * mask * (1 / keep if keep > 0 else 0.0), mask


def rrelu(draws: Draws, a: Given) -> Tensor:
    """Slopes of the negative inputs; ``noise`` keeps them for the backward pass."""
    x, u = a["self"], draws.uniform(a["self"]).to(a["self"].dtype)
    a["noise"].copy_(torch.where(x <= 0, u * (a["upper"] - a["lower"]) + a["lower"], torch.ones_like(x)))
    return x * a["noise"]


def normal_of(draws: Draws, a: Given) -> Tensor:
    """Normals of a mean and a deviation, of which each is a number or a tensor."""
    mean, std = a["mean"], a["std"]
    like = made(a) if "size" in a else torch.broadcast_tensors(*(v for v in (mean, std) if isinstance(v, Tensor)))[0]
    return draws.normal(like) * std + mean


def randint(draws: Draws, a: Given) -> Tensor:
    t = made(a, torch.int64)
    return t.copy_(draws.whole(t, int(a.get("low", 0)), int(a["high"])))


def random_(draws: Draws, a: Given) -> Tensor:
    if a.get("to") is None:
        raise Undrawn("by random_ without bounds: say from where to where, random_(from, to)")
    return a["self"].copy_(draws.whole(a["self"], a.get("from", 0), a["to"]))


def randperm(draws: Draws, a: Given) -> Tensor:
    t = made(a | {"size": [a["n"]]}, torch.int64)
    return t.copy_(draws.whole(t, 0, 2**62).argsort(stable=True))


def multinomial(draws: Draws, a: Given) -> Tensor:
    """Categories with given weights: each runs for an exponential time, and the first ones are drawn."""
    weights, n = a["self"].double(), a["num_samples"]
    if not a["replacement"]:
        return (weights / draws.exponential(weights)).topk(n).indices
    races = weights.unsqueeze(-2).expand(*weights.shape[:-1], n, -1)
    return (races / draws.exponential(races)).argmax(-1)


DRAWN: dict[str, Callable[[Draws, Given], Any]] = {
    "uniform_": uniform_,
    "rand": lambda d, a: spread(d, made(a)),
    "rand_like": lambda d, a: spread(d, made(a)),
    "normal_": lambda d, a: a["self"].copy_(d.normal(a["self"]) * a["std"] + a["mean"]),
    "randn": lambda d, a: (t := made(a)).copy_(d.normal(t)),
    "randn_like": lambda d, a: (t := made(a)).copy_(d.normal(t)),
    "normal": normal_of,
    "log_normal_": lambda d, a: a["self"].copy_((d.normal(a["self"]).double() * a["std"] + a["mean"]).exp()),
    "exponential_": lambda d, a: a["self"].copy_(d.exponential(a["self"], a["lambd"])),
    "geometric_": lambda d, a: a["self"].copy_(d.exponential(a["self"], -math.log1p(-a["p"])).ceil()),
    "bernoulli": bernoulli,
    "bernoulli_": bernoulli_,
    "native_dropout": native_dropout,
    "rrelu_with_noise": rrelu,
    "rrelu_with_noise_": lambda d, a: a["self"].copy_(rrelu(d, a)),
    "randint": randint,
    "randint_like": randint,
    "random_": random_,
    "randperm": randperm,
    "multinomial": multinomial,
}
