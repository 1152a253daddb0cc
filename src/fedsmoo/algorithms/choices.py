"""What settings put around a method, by name or from a user's file: how clients step, what they send, who attacks."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from fedsmoo.algorithms.around import Around
from fedsmoo.algorithms.attacks import ATTACKS, Attacked, LabelFlip
from fedsmoo.algorithms.compressed import COMPRESSIONS
from fedsmoo.algorithms.fedcm import FedCM
from fedsmoo.algorithms.feddc import FedDC
from fedsmoo.algorithms.fedswa import FedMoSWA
from fedsmoo.algorithms.fedwmsam import FedWMSAM
from fedsmoo.algorithms.optimisers import OPTIMISERS, AdamW, Momentum, Optimiser
from fedsmoo.algorithms.privacy import PRIVACIES, Private
from fedsmoo.algorithms.rates import RATES
from fedsmoo.algorithms.robust import Robust
from fedsmoo.algorithms.scaffold import SCAFFOLD
from fedsmoo.core import Algorithm, FedsmooError, Schedule
from fedsmoo.core.errors import FedsmooWarning, unknown
from fedsmoo.core.hyper.options import read_options, refuse_ignored_values
from fedsmoo.core.share import count_of_share
from fedsmoo.core.user_code import call, is_in_file, user_object

# By setting: the names there are, and the one that leaves a method as it is. The first is put around the method first.
CHOICES: dict[str, tuple[Mapping[str, type[Around]], str]] = {
    "local_optimizer": (OPTIMISERS, "sgd"),
    "local_schedule": (RATES, "constant"),
    "privacy": (PRIVACIES, "off"),
    "compression": (COMPRESSIONS, "off"),
    "attack": (ATTACKS, "off"),
}

DIVIDES = (SCAFFOLD, FedCM, FedDC, FedMoSWA, FedWMSAM)  # by the learning rate and the number of steps
BY_SIZE = ("weighted", "power_of_choice")  # ways of drawing cohorts in proportion to samples


def choice_class(setting: str, spec: str) -> type[Around] | None:
    """Return what a setting puts around a method; ``None`` for the name that leaves the method as it is."""
    known, plain = CHOICES[setting]
    if is_in_file(spec):
        cls = user_object(spec, setting)
        if not (isinstance(cls, type) and issubclass(cls, Around)):
            raise FedsmooError(f"{setting} {spec!r} is not a class derived from fedsmoo.Around")
        refuse_ignored_values(cls)
        return cls
    if spec != plain and spec not in known:
        raise unknown(setting, spec, [plain, *known])
    return known.get(spec)


def options_of_choice(cls: type[Around]) -> dict[str, Any]:
    """Return the options of what is put around a method, with their defaults."""
    return {f.name: f.default for f in dataclasses.fields(cls) if f.name != "inner"}


def put_around(inner: Algorithm, setting: str, spec: str, options: Mapping[str, Any]) -> Algorithm:
    """Return the method inside what a setting names, made with options; wrong names, types and ranges are refused."""
    cls = choice_class(setting, spec)
    if cls is None:
        if options:
            raise FedsmooError(f"{setting} {spec!r} has no options: leave out {', '.join(options)}")
        return inner
    values = read_options(cls, options, list(options_of_choice(cls)))
    method: Algorithm = call(cls, f"{setting} {spec!r} cannot be made", inner, **values)
    return method


class RunSettings(Protocol):
    """The settings of a run that decide something of what is put around its method."""

    @property
    def local_optimizer(self) -> str: ...
    @property
    def local_schedule(self) -> str: ...
    @property
    def local_steps(self) -> int | None: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def privacy(self) -> str: ...
    @property
    def compression(self) -> str: ...
    @property
    def attack(self) -> str: ...
    @property
    def loss(self) -> str: ...
    @property
    def loss_options(self) -> dict[str, Any]: ...
    @property
    def weighted(self) -> bool: ...
    @property
    def wire(self) -> str: ...
    @property
    def sampling(self) -> str: ...
    @property
    def cohort(self) -> int: ...


def with_options_of_run(setting: str, options: Mapping[str, Any], run: RunSettings) -> dict[str, Any]:
    """Return the options of a choice with those that the run's other settings decide, which may not be given apart."""
    decided: dict[str, tuple[Any, str]] = {}
    if setting == "local_optimizer" and run.local_optimizer == "adamw":
        decided["weight_decay"] = run.weight_decay, "the weight decay of adamw is the run's: set weight_decay instead"
    if setting == "privacy" and run.privacy == "client":
        mean = float(run.cohort) if run.sampling == "bernoulli" else None
        decided["expected"] = mean, "the expected cohort of privacy is the run's: set cohort instead"
    for name, (_, advice) in decided.items():
        if name in options:
            raise FedsmooError(advice)
    return {**options, **{name: value for name, (value, _) in decided.items()}}


def with_decay(method: Algorithm, decay: float) -> Algorithm:
    """Return a method in which AdamW, where somebody put it around by hand, has the run's decay, if no other."""
    mine = {"weight_decay": decay} if isinstance(method, AdamW) and method.weight_decay is None else {}
    inner = getattr(method, "inner", None)
    changed: dict[str, Any] = {"inner": with_decay(inner, decay)} if isinstance(inner, Algorithm) else {}
    return dataclasses.replace(method, **mine, **changed) if mine or changed.get("inner") is not inner else method


def decay_of_steps(method: Algorithm, run: RunSettings) -> float:
    """Return the weight decay in the directions of a run's method: none where AdamW has it beside its moments."""
    return 0.0 if any(isinstance(m, AdamW) for m in layers(method)) else run.weight_decay


def put_choices_around(method: Algorithm, run: RunSettings) -> Algorithm:
    """Return a method inside what a run's settings put around it; refuse settings that undo each other."""
    method = with_decay(method, run.weight_decay)
    refuse_together(run, method)
    for name in CHOICES:
        options = with_options_of_run(name, getattr(run, f"{name}_options"), run)
        method = put_around(method, name, getattr(run, name), options)
    return method


def refuse_together(run: RunSettings, method: Algorithm) -> None:
    """Refuse settings that undo each other, or what the run's method needs; warn of some that change nothing."""
    refuse_with_privacy(run, method)
    if run.attack == "label-flip" and run.loss not in ("auto", "cross_entropy"):
        raise FedsmooError(f"attack=label-flip is for classes: it cannot be had with loss={run.loss}")
    if run.attack == "label-flip" and run.loss_options:
        names = ", ".join(run.loss_options)
        raise FedsmooError(f"attack=label-flip knows plain cross-entropy only: leave out options of the loss ({names})")
    say_what_weights_do(run, method)
    if run.compression != "off" and run.wire != "exact":
        raise FedsmooError(f"compression={run.compression} and wire={run.wire} both say what travels: choose one")


def refuse_with_privacy(run: RunSettings, method: Algorithm) -> None:
    """Refuse what cannot be had with privacy, whether a setting names it or somebody put it around the method."""
    by_hand = next((m for m in layers(method) if isinstance(m, Private)), None)
    if run.privacy == "off" and by_hand is None:
        return
    what = f"privacy={run.privacy}" if by_hand is None else "Private(...) around the method"
    unbounded = "what it adds to later messages is not bounded"
    telling = run.local_steps is None and (bool(method.public) or run.local_schedule != "constant")
    who = f"local_schedule={run.local_schedule}" if run.local_schedule != "constant" else method.label
    clashes = {
        f"{who} by epochs: clients would send how many steps they made, which tells how many samples they have: "
        "set local_steps, the same for all": telling,
        "weighted: one client may count for more than its share": run.weighted,
        f"compression={run.compression}: {unbounded}": run.compression != "off",
        f"wire={run.wire}: {unbounded}": run.wire != "exact",
        f"sampling={run.sampling}: its chances are not accounted for": run.sampling not in ("uniform", "bernoulli"),
    }
    for other, clash in clashes.items():
        if clash:
            raise FedsmooError(f"{what} cannot be had with {other}")
    mean = run.cohort if run.sampling == "bernoulli" else None
    if by_hand is not None and by_hand.expected != mean:
        raise FedsmooError(
            f"{what} has expected={by_hand.expected}, but with sampling={run.sampling} and a cohort of "
            f"{run.cohort} it is {mean}: set it so, or say privacy='client', which does"
        )


def say_what_weights_do(run: RunSettings, method: Algorithm) -> None:
    """Warn where ``weighted`` changes nothing, and where it counts large clients twice."""
    if not run.weighted:
        return
    if alike := next((m for m in layers(method) if isinstance(m, Robust) and not m.weighs), None):
        note = f"{alike.label} counts all clients alike: weighted changes nothing of its model"
        warnings.warn(note, FedsmooWarning, stacklevel=3)
    if run.sampling in BY_SIZE:
        chance, end = f"sampling={run.sampling} draws large clients more often", "large clients count twice over"
        warnings.warn(f"{chance}, and weighted lets them weigh more: {end}", FedsmooWarning, stacklevel=3)


def look_at_method(method: Algorithm, clients: int, cohort: int, plain_loss: bool) -> None:
    """Refuse or warn of what a method cannot be with a run's clients, its loss, or what else is put around it."""
    refuse_too_few(method, clients, cohort)
    say_what_is_divided(method)
    if not plain_loss:
        refuse_other_loss(method)


def refuse_other_loss(method: Algorithm) -> None:
    """Refuse flipped labels in a run whose loss is not plain cross-entropy; say it of methods with a loss of their own.

    Their clients' gradients are of cross-entropy, with what the method adds to it, whatever the run's loss is.
    """
    for layer in layers(method):
        if isinstance(layer, LabelFlip):
            raise FedsmooError("attack=label-flip knows plain cross-entropy only: leave out the loss and its options")
        if any(c.__module__.startswith("fedsmoo.") and vars(c).get("of_classes") is True for c in type(layer).__mro__):
            what = f"{layer.label} trains on cross-entropy with more of its own"
            note = f"{what}: the run's loss and its options count in evaluations only"
            warnings.warn(note, FedsmooWarning, stacklevel=2)


def say_what_is_divided(method: Algorithm) -> None:
    """Warn where a method takes a client's whole way for so many gradients, and an optimiser makes it longer.

    Momentum makes it up to 1 / (1 - momentum) times as long, and in the next round that once more: what the method adds
    to gradients grows without bound. Adam's steps have no size of gradients at all.
    """
    divides = next((m for m in layers(method) if isinstance(m, DIVIDES)), None)
    steps = next((m for m in layers(method) if isinstance(m, Optimiser)), None)
    if divides is None or steps is None or (isinstance(steps, Momentum) and largest(steps.momentum) == 0):
        return
    name = type(steps).__name__.lower()
    warnings.warn(
        f"{type(divides).__name__} takes (w - w_i) / (K lr) for a mean gradient, which steps of {name} do not make it: "
        "it will train badly, or not at all: leave out the optimiser, or take another method",
        FedsmooWarning,
        stacklevel=2,
    )


def refuse_too_few(method: Algorithm, clients: int, cohort: int) -> None:
    """Refuse more attackers than there are clients, and say where a share of the replies is none of a cohort's."""
    for layer in layers(method):
        if isinstance(layer, Attacked) and (attackers := largest(layer.attackers)) > clients:
            raise FedsmooError(f"attackers is {attackers:g}, but there are {clients} clients: lower it")
        if isinstance(layer, Robust) and layer.share:
            share = largest(getattr(layer, layer.share))
            if share > 0 and count_of_share(cohort, share) == 0:
                what = f"{layer.label}: {layer.share} is {share:g}, but of {cohort} replies that is none"
                warnings.warn(f"{what}: raise it, or the cohort", FedsmooWarning, stacklevel=2)


def layers(method: Algorithm) -> Iterator[Algorithm]:
    """Yield a method, from the outermost of what is put around it to what is inside."""
    inner: Any = method
    while isinstance(inner, Algorithm):
        yield inner
        inner = getattr(inner, "inner", None)


def largest(value: float | Schedule) -> float:
    """Return a number, or the largest of those that a schedule gives."""
    return value.extremes[1] if isinstance(value, Schedule) else value
