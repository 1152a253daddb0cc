"""What a federated method is: which vectors travel, which stay where, and pure functions on flat vectors.

One round, as every engine runs it::

    down = sent(srv)                                       # to the n clients of the cohort
    for each client i of the cohort:
        me = own state of i, or first_contact(down)        # plus zeros for what lives one round
        w  = start(down, me)
        repeat K times:
            d, me = direction(w, grad, down, me)           # grad.rnd says which step and client this is
            w, me = update(w, clip(d + pull(w, down)) + weight_decay * w, me, rnd)
        me, up = finish(w, down, me, rnd)                  # own state is kept, up is sent
    srv = aggregate(srv, mean of up over the cohort, rnd)    # of declared rows what combine makes of them

Vectors are ``[P]`` (one client) or ``[C, P]`` (C clients at once); ``down`` may stay ``[P]`` and broadcasts; norms are
over the last axis. Hyper-parameters may be ``[C, 1]`` tensors when several runs advance in one batch, so a method
never branches on a number (switches are ``bool`` or ``str`` fields). ``fedsmoo.core.contract`` checks all of this.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
from torch import Tensor

from fedsmoo.core.errors import ChecksArguments, FedsmooError
from fedsmoo.core.gradient import StepGradient
from fedsmoo.core.hyper.options import KINDS, kinds, refuse_ignored_values, refuse_outside
from fedsmoo.core.hyper.schedule import Schedule
from fedsmoo.core.round import Round
from fedsmoo.core.vectors import Vectors

Gradient = StepGradient  # what is called grad in a method's functions
T = TypeVar("T")


def derived(names: Callable[[Any], T]) -> T:
    """Declare vectors that follow from a method's switches, in place of a plain tuple of names.

    >>> from fedsmoo import FedAvg
    >>> @dataclass(frozen=True)
    ... class Noted(FedAvg):
    ...     note: bool = True
    ...     own = derived(lambda self: ("note",) if self.note else ())
    >>> Noted().own, Noted(note=False).own
    (('note',), ())
    """
    return cast("T", property(names))  # for a type checker it is what reading it gives


def refuse_other_kind(name: str, value: Any, kind: type, optional: bool = False) -> None:
    """Refuse what is not of a field's type: text is no number, and neither text nor a number is true or false."""
    if (value is None and optional) or (isinstance(value, Tensor) and kind in (int, float)):
        return
    if isinstance(value, Schedule) and (kind is float or (kind is int and value.is_whole)):
        return
    if kind is bool:
        fits = isinstance(value, bool | np.bool_)
    elif kind is str:
        fits = isinstance(value, str)
    else:
        fits = isinstance(value, Real) and not isinstance(value, bool)
        fits = fits and (kind is float or (math.isfinite(value) and value == int(value)))
    if not fits:
        shown = str(value) if isinstance(value, Schedule) else repr(value)
        raise FedsmooError(f"{name} is {shown}, but must be {KINDS[kind]}")


def refuse_wrong_options(algorithm: Algorithm) -> None:
    """Refuse hyper-parameters that are not of their fields' types, or outside of what these allow."""
    refuse_ignored_values(type(algorithm))
    known = kinds(type(algorithm))
    for f in dataclasses.fields(algorithm):
        value = getattr(algorithm, f.name)
        if f.name in known:
            refuse_other_kind(f.name, value, *known[f.name])
        per_client = isinstance(value, Tensor) and not f.metadata.get("choices")  # a number for each: any
        if not per_client and (value is not None or f.name not in known):
            refuse_outside(f.name, value, f.metadata)


@dataclass(frozen=True)
class Algorithm(ChecksArguments):
    """The base of every method: local SGD and the mean. Its fields are the hyper-parameters and the CLI flags."""

    down: ClassVar[tuple[str, ...]] = ("w",)  # server -> client
    server: ClassVar[tuple[str, ...]] = ()  # stays on the server
    own: ClassVar[tuple[str, ...]] = ()  # stays on client i between rounds
    local: ClassVar[tuple[str, ...]] = ()  # lives for one round
    up: ClassVar[tuple[str, ...]] = ("w",)  # client -> server; its mean over the cohort is used, but for rows
    scalars: ClassVar[tuple[str, ...]] = ()  # which of all these names are one number, [.., 1]
    sizes: ClassVar[Mapping[str, int]] = MappingProxyType({})  # name -> how many numbers, if not one or the model's
    rows: ClassVar[tuple[str, ...]] = ()  # which names of up the server sees client by client, in combine
    relative: ClassVar[tuple[str, ...]] = ()  # which names of up are changes of what came down so named: codes
    public: ClassVar[tuple[str, ...]] = ()  # which scalars of up follow from a client's number of steps: no secret
    columnwise: ClassVar[bool] = False  # whether combine makes each coordinate of rows from that coordinate alone
    masks: ClassVar[Mapping[str, str]] = MappingProxyType({})  # name -> parameters ("fc.*"): 0/1 beside down and srv
    stays: ClassVar[tuple[str, ...]] = ()  # masks whose numbers do not travel
    expects: ClassVar[float | None] = None  # as how many clients its server counts any cohort, even nobody
    moving: ClassVar[str | None] = None  # which vector of local says, by 0 and 1, what a step moves; None: all
    asks: ClassVar[tuple[str, ...]] = ()  # what costs a pass over a client's samples: ("loss",) gives rnd.loss
    statistics: ClassVar[str | None] = None  # how it has running statistics of a model; None: as a run's setting says
    features: ClassVar[bool] = False  # whether losses of its own see (outputs, features), what the last layer reads
    of_classes: ClassVar[bool] = False  # whether it can only train on one class a sample, as losses of its own may

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Refuse hyper-parameters of ours without their names: nobody remembers whether ``r`` or ``beta`` is first."""
        mine = [c for c in cls.__mro__ if c.__module__.startswith("fedsmoo.")]
        for f in [f for f in dataclasses.fields(cls) if f.init][: len(values)]:
            if not f.metadata.get("positional") and any(f.name in vars(c).get("__annotations__", ()) for c in mine):
                words = ", ".join(f"{f.name}=..." for f in dataclasses.fields(cls))
                raise FedsmooError(f"{cls.__name__} takes its hyper-parameters by name: write {cls.__name__}({words})")
        return super().__new__(cls, *values, **named)

    def __post_init__(self) -> None:
        refuse_wrong_options(self)

    def at(self, number: int) -> Self:
        """Return the method as it is in a round, counted from 0: its schedules, and an inner method's, are numbers.

        Not to be overridden. A method without schedules is itself in every round.
        """
        now: dict[str, Any] = {}
        for name, value in self.options().items():
            if isinstance(value, Schedule):
                found = value(number)
                now[name] = int(found) if kinds(type(self)).get(name, (float,))[0] is int else found
            elif isinstance(value, Algorithm) and (inner := value.at(number)) is not value:
                now[name] = inner
        return dataclasses.replace(self, **now) if now else self

    def init(self, w: Tensor) -> Vectors:
        """Return the server's vectors before the first round: the model and zeros."""
        names = dict.fromkeys((*self.down, *self.server))
        return Vectors(**{n: w.clone() if n == "w" else self.zeros(n, w) for n in names})

    def zeros(self, name: str, like: Tensor) -> Tensor:
        """Return zeros for a declared name: a vector, or a single number."""
        return like.new_zeros(*like.shape[:-1], self.length(name, like.shape[-1]))

    def length(self, name: str, size: int) -> int:
        """Return how many numbers a declared name holds: one, as many as ``sizes`` says, or as many as the model."""
        return 1 if name in self.scalars else self.sizes.get(name, size)

    @property
    def summed(self) -> tuple[str, ...]:
        """What of ``up`` enters a mean over the cohort: all but ``rows``."""
        return tuple(n for n in self.up if n not in self.rows)

    def sent(self, srv: Vectors) -> Vectors:
        """Return what each client of a cohort receives."""
        return srv.pick(self.down)

    def first_contact(self, down: Vectors) -> Vectors:
        """Return a client's own state when it is met for the first time, made only from what it was sent."""
        return Vectors(**{n: self.zeros(n, down.w) for n in self.own})

    def start(self, down: Vectors, me: Vectors) -> Tensor:
        """Return where local training starts."""
        return down.w

    def slope(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        """Return the gradient that the method descends: plain, or taken at a perturbed point."""
        return grad(w), me

    def direction(self, w: Tensor, grad: Gradient, down: Vectors, me: Vectors) -> tuple[Tensor, Vectors]:
        """Return one local step's direction: the gradient of :meth:`slope` with its linear corrections."""
        return self.slope(w, grad, down, me)

    def pull(self, w: Tensor, down: Vectors) -> Tensor | None:
        """Return the proximal term of the direction, kept apart because released code clips without it."""
        return None

    def update(self, w: Tensor, d: Tensor, me: Vectors, rnd: Round) -> tuple[Tensor, Vectors]:
        """Return the model after a step along ``d``, which is clipped and holds the weight decay."""
        return w - rnd.lr * d, me

    def finish(self, w: Tensor, down: Vectors, me: Vectors, rnd: Round) -> tuple[Vectors, Vectors]:
        """Return the client's new own state, and what it sends, after its K steps."""
        return me, Vectors(w=w)

    def combine(self, srv: Vectors, rows: Vectors, weights: Tensor, rnd: Round) -> Vectors:
        """Return one vector for each of ``rows [n, P]``, for ``aggregate`` in place of its mean.

        ``weights`` and what ``rnd`` says of clients are ``[n, 1]``.
        """
        return rows.map(lambda v: (weights * v).sum(0))

    def aggregate(self, srv: Vectors, mean: Vectors, rnd: Round) -> Vectors:
        """Return the server's new vectors from the mean of what was sent."""
        return srv.replace(w=srv.w + (mean.w - srv.w))  # as an update: FedAvg with lr_server = 1 to the last bit

    def personal(self, down: Vectors, me: Vectors) -> Tensor | None:
        """Return the model that serves a client itself; ``None``: the global one."""
        return None

    @property
    def has_personal(self) -> bool:
        """Whether the method defines :meth:`personal`."""
        return type(self).personal is not Algorithm.personal

    def bytes_of(self, name: str, numbers: int, width: int) -> int:
        """Return the bytes of a vector that travels; a method that compresses it overrides this."""
        return numbers * width

    def bytes_up(self, name: str, numbers: int, width: int) -> int:
        """Return the bytes of a vector that a client sends, where they are not those of one that it receives."""
        return self.bytes_of(name, numbers, width)

    @property
    def radius(self) -> float | None:
        """The radius of the perturbed point at which clients take gradients; ``None``: at their own model."""
        return None

    def agreement(self, server: Vectors, me: Vectors) -> tuple[Tensor, Tensor] | None:
        """Return the perturbation that clients agree on and a client's dual variable of it; ``None``: there is none."""
        return None

    @property
    def label(self) -> str:
        """The name in tables."""
        return type(self).__name__

    def options(self) -> dict[str, Any]:
        """Return the hyper-parameters as a plain dictionary."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
