"""Record the operations of a function of named vectors and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

from fedsmoo.compiler import NotCompiled
from fedsmoo.core import Algorithm, LocalRule, Round, Vectors
from fedsmoo.core.gradient import Each, Loss, Running, StepGradient
from fedsmoo.core.local import masked_step

aten = torch.ops.aten


@torch.library.custom_op("fedsmoo::traced_gradient", mutates_args=())
def _traced_gradient(v: Tensor) -> tuple[Tensor, Tensor]:
    raise AssertionError("only traced, never run")


@_traced_gradient.register_fake
def _(v: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(v), v.new_empty(len(v))


def takes_gradient(node: Node) -> bool:
    """Return whether a node stands for a gradient (and losses) at a point."""
    return node.op == "call_function" and node.target is torch.ops.fedsmoo.traced_gradient.default


class NumbersUnseen(TorchDispatchMode):
    """Refuses that a traced function looks at a number in memory, as ``float(self.r)`` does of one client's.

    What it sees is the number of this round, and the trace would have it built in.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._local_scalar_dense.default:
            raise RuntimeError("it looks at a number, which other rounds may have otherwise")
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Trace:
    """A traced function: its operations, the name of each input, and the node of each named result."""

    module: GraphModule
    given: dict[Node, str]
    results: dict[str, Node]

    def held(self) -> dict[str, Tensor]:
        """Return the tensors that a method itself holds, such as numbers per client, by their names in the trace."""
        names = [str(n.target) for n in self.module.graph.nodes if n.op == "get_attr"]
        return {name: getattr(self.module, name) for name in names}


def record(function: Callable[..., dict[str, Tensor]], named: dict[str, Tensor]) -> Trace:
    """Trace a function of named tensors; those it reads are ``[C, P]``, ``[P]``, ``[C, 1]`` or ``[]``, one is ``w``.

    Raises:
        NotCompiled: if it does anything but arithmetic on such vectors and numbers.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # late: it imports a second's worth of algebra

    names: list[str] = []

    def flat(*tensors: Tensor) -> list[Tensor]:
        with NumbersUnseen():
            found = function(*tensors)
        names[:] = found
        return list(found.values())

    with torch.autocast("cuda", enabled=False):
        module = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*named.values())
    module.graph.eliminate_dead_code()
    nodes = list(module.graph.nodes)
    given = dict(zip([n for n in nodes if n.op == "placeholder"], named, strict=True))
    refuse_unsupported(nodes[:-1], named["w"])
    return Trace(module, given, dict(zip(names, nodes[-1].args[0], strict=True)))


def refuse_unsupported(nodes: Iterable[Node], w: Tensor) -> None:
    """Refuse all but pure operations on vectors and numbers, per client or shared, of one type.

    Raises:
        NotCompiled: naming the first operation that is none.
    """
    clients, size = w.shape
    known = {(clients, size), (1, size), (size,), (clients, 1), (clients,), (1, 1), (1,), ()}
    for node in nodes:
        if node.op == "placeholder" and not node.users:
            continue  # the counts of classes, say, which few methods read
        value = node.meta.get("val")
        if isinstance(value, Tensor) and (tuple(value.shape) not in known or value.dtype not in (w.dtype, torch.bool)):
            raise NotCompiled(f"{node} is {tuple(value.shape)} of {value.dtype}")
        if node.op == "get_attr" and value is not None and value.device != w.device:
            raise NotCompiled(f"{node} is on {value.device}")
        if node.op in ("get_attr", "placeholder") and isinstance(value, Tensor) and not value.is_contiguous():
            raise NotCompiled(f"the numbers of {node} lie apart")  # passes go by rows, one after the other
        if value is None or getattr(getattr(node.target, "_schema", None), "is_mutable", False):
            raise NotCompiled(f"{node} changes something in place")
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            raise NotCompiled(f"{node} draws numbers")
        if node.target is getitem and node.args[1] != 0:
            raise NotCompiled(f"{node} is the loss of a gradient")  # which kernels write where passes do not read
        found = reduction(node)
        if found is not None and shape(found.of)[-1] != size:
            raise NotCompiled(f"{node} adds up numbers")


@dataclass(frozen=True)
class StepInputs:
    """The tensors a local step reads: ``w``, ``active``, ``rnd_NAME``, ``me_NAME`` and ``down_NAME`` in a trace."""

    w: Tensor
    me: Vectors
    down: Vectors
    rnd: Round  # at a step: all numbers in tensors
    active: Tensor | None

    def named(self) -> dict[str, Tensor]:
        named = {"w": self.w} | ({} if self.active is None else {"active": self.active}) | named_round(self.rnd)
        named |= {f"me_{n}": v for n, v in self.me.items()}
        return named | {f"down_{n}": v for n, v in self.down.items()}


def named_round(rnd: Round) -> dict[str, Tensor]:
    """Return the tensors of a round by their names in a trace."""
    return {f"rnd_{n}": v for n, v in rnd.tensors().items()}


def traced_round(rnd: Round, given: dict[str, Tensor], clients: int) -> Round:
    """Return a round whose tensors are those of a trace; the step is one for all clients, and said to each."""
    known = {n: given[f"rnd_{n}"] for n in rnd.tensors()}
    known |= {"step": known["step"].expand(clients, 1)} if "step" in known else {}
    return dataclasses.replace(rnd, **known)


def trace_step(algorithm: Algorithm, rule: LocalRule, inputs: StepInputs) -> Trace:
    """Trace a local step. Its results are the new weights ``w`` and the client's new vectors ``me_NAME``.

    Raises:
        NotCompiled: if it is not plain arithmetic on vectors, or takes a gradient that it does not use.
    """
    named, names = inputs.named(), inputs.me.names()
    taken: list[Tensor] = []

    def step(*tensors: Tensor) -> dict[str, Tensor]:
        given = dict(zip(named, tensors, strict=True))
        me = Vectors(**{n: given[f"me_{n}"] for n in names})
        down = Vectors(**{n: given[f"down_{n}"] for n in inputs.down.names()})
        rnd, clients = traced_round(inputs.rnd, given, len(inputs.w)), len(inputs.w)
        grad = StepGradient(torch.ops.fedsmoo.traced_gradient, rnd, NoModel(), clients)
        w, me = masked_step(algorithm, rule, given["w"], grad, down, me, given.get("active"))
        taken[:] = grad.losses
        return {"w": w} | {f"me_{n}": getattr(me, n) for n in names}

    trace = record(step, named)
    if len(taken) != sum(takes_gradient(n) for n in trace.module.graph.nodes):
        raise NotCompiled("the step takes a gradient and does not use it")  # but its loss counts
    return trace


class NoModel:
    """Passes know gradients of the run's loss only."""

    sees_features = True

    def carrying(self, running: Running) -> NoModel:
        raise NotCompiled("running statistics")

    def own(self, v: Tensor, loss: Loss, given: Sequence[Any]) -> tuple[Tensor, Tensor]:
        raise NotCompiled("a loss of the method's own")

    def outputs(self, v: Tensor) -> Tensor:
        raise NotCompiled("outputs of the model")

    features = loss = outputs

    def mean(self, v: Tensor, each: Each, given: Sequence[Any]) -> Tensor:
        raise NotCompiled("means over the samples of a batch")


class Sum(NamedTuple):
    """A reduction of a vector to a number per client: a norm (the root of squares) or a plain sum."""

    of: Node
    norm: bool


def reduction(node: Node) -> Sum | None:
    """Return what a norm or a sum over the last axis reduces; nothing for other operations."""
    of, first, second = (*node.args, None, None, None)[:3]
    if not isinstance(of, Node):
        return None
    if node.target is aten.linalg_vector_norm.default and first in (2, None) and second == [-1]:
        return Sum(of, True)
    return Sum(of, False) if node.target is aten.sum.dim_IntList and first == [-1] else None


def shape(node: Node) -> torch.Size:
    return node.meta["val"].shape
