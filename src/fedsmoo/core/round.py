"""Where a method is: the round, the step and the client that its functions are called for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from fedsmoo.core.blame import calling_frames, place_of
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.random.draw import draw

NOT_ASKED = "rnd.loss: a client's loss costs a pass over its samples: a method must declare it, asks = ('loss',)"


@dataclass(frozen=True)
class Round:
    """What a method may know of the current round besides vectors.

    ``steps`` is, in ``finish`` and ``combine``, the local steps of each client and, in ``aggregate``, their mean over
    the cohort, with the weights of the vectors' mean; ``share`` is n / m with the n clients that really took part. Of C
    clients at once each may be a number per client, ``[C, 1]``: several runs can share a batch. What is said of a
    client (``step``, ``client``, ``samples``, ``labels``, ``loss``) is always a tensor: ``[C, 1]``, or ``[1]`` of one.
    """

    number: Any
    lr: Any
    steps: Any
    share: Any
    step: Any = None  # in direction (as grad.rnd) and update: the local step, from 0
    client: Any = None  # its number; the samples it holds; how many of each class, [.., K]
    samples: Any = None
    labels: Any = None
    loss: Any = None  # its mean loss at down.w over its samples, for a method that asks for it
    n: Any = None  # in combine and aggregate: how many clients replied
    key: Any = None  # names the noise of the seed, the round, and the client or the server: [.., 2]

    def normal(self, name: str, like: Tensor) -> Tensor:
        """Return standard normal numbers shaped as ``like``: the stream of the seed, round, client, name and step.

        The same name gives the same numbers on every engine and device and after a resume, whoever else takes part; a
        client's are not the server's, and those of a step not those of ``finish``. Nothing has to be declared.
        """
        return self._noise("normal", name, like)

    def uniform(self, name: str, like: Tensor) -> Tensor:
        """Return numbers in (0, 1), as :meth:`normal` does."""
        return self._noise("uniform", name, like)

    def _noise(self, kind: str, name: str, like: Tensor) -> Tensor:
        if self.key is None:
            raise FedsmooError(f"rnd.{kind}({name!r}, ...): this Round has no key, which says whose noise it is")
        return draw(kind, self.key, f"method {name}", self.step, like)  # models draw by the names of their layers

    def at_step(self, step: Tensor) -> Round:
        """Return the round at a local step."""
        # Spelt out: every step does it, and not every release of torch.compile follows a walk over the fields.
        return Round(
            self.number, self.lr, self.steps, self.share, step, self.client, self.samples, self.labels, self.loss,
            self.n, self.key,
        )  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        """Return what is held in tensors, by name."""
        named = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {n: v for n, v in named.items() if isinstance(v, Tensor)}


class Missing:
    """What a method cannot be told in this run, and why: whatever it does with it is refused, with the user's line."""

    def __init__(self, why: str) -> None:
        self.why = why

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raise the reason, with the user's line."""
        place = place_of(calling_frames())
        raise FedsmooError(f"{place}: {self.why}" if place else self.why)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what Python and PyTorch ask any object
            raise AttributeError(name)
        self.refuse()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        next(a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Missing)).refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = refuse
    __pow__ = __rpow__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __bool__ = __float__ = refuse
