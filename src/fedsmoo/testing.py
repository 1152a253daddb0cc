"""Checks that every method passes, and that a method of your own can be held to.

from fedsmoo.testing import check_algorithm

def test_my_method():
    check_algorithm(MyMethod(rho=0.1))
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedsmoo.core import Algorithm, Gradient, LocalRule, Round, Vectors
from fedsmoo.core.local import local_step
from fedsmoo.core.streams import torch_stream

SIZE, CLIENTS, STEPS, LR = 7, 3, 2, 0.1
RULE = LocalRule(weight_decay=0.01, clip=2.0)
PLACES = ("down", "server", "own", "local", "up")


def check_algorithm(algorithm: Algorithm, compiled: bool = True) -> None:
    """Every check below; ``AssertionError`` with a sentence for the first that fails.

    Args:
        algorithm: a method with its hyper-parameters.
        compiled: also trace a whole local step, which takes a second.
    """
    check_description(algorithm)
    check_names(algorithm)
    check_use(algorithm)
    check_purity(algorithm)
    check_rows(algorithm)
    check_hyperparameters(algorithm)
    if compiled:
        check_compiles(algorithm)


def check_description(algorithm: Algorithm) -> None:
    """A frozen dataclass with help beside every field, a box in its docstring, and its paper in its module's."""
    cls = type(algorithm)
    assert dataclasses.is_dataclass(cls), f"{cls.__name__} is not a dataclass: write @dataclass(frozen=True) above it"
    assert cls.__dataclass_params__.frozen, f"{cls.__name__} is not frozen"  # type: ignore[attr-defined]
    for f in dataclasses.fields(cls):
        assert f.metadata.get("help"), f"{cls.__name__}.{f.name} has no help: write option(default, 'its meaning')"
    text = "" if cls.__doc__ is None or cls.__doc__.startswith(f"{cls.__name__}(") else inspect.cleandoc(cls.__doc__)
    assert text.partition("\n")[0].endswith((".", ":")), f"{cls.__name__}: the docstring must open with a sentence"
    box = [line for line in text.splitlines() if re.match(r"(client|server)\s", line)]
    assert box, f"{cls.__name__}: the docstring has no box (lines that start with 'client' or 'server')"
    paper = (inspect.getmodule(cls).__doc__ if inspect.getmodule(cls) else "") or ""
    ours = cls.__module__.startswith("fedsmoo.")  # a user's method may have no paper yet
    assert not ours or re.search(r"\b(19|20)\d\d\b", paper), (
        f"{cls.__name__}: the module's docstring must name the paper and its year"
    )


def check_names(algorithm: Algorithm) -> None:
    """Every function reads only what is declared for it and returns exactly what is declared."""
    name = algorithm.label
    for place in PLACES:
        names = getattr(algorithm, place)
        assert isinstance(names, tuple), f"{name}.{place} must be a tuple of names, not {names!r}"
        assert len(set(names)) == len(names), f"{name}.{place} names a vector twice: {names}"
        assert all(n.isidentifier() for n in names), f"{name}.{place}: {names} are not names"
    assert "w" in algorithm.down, f"{name}.down must hold the model, w"
    assert not {*algorithm.down} & {*algorithm.server}, f"{name}: what is in down is on the server already"
    assert not {*algorithm.own} & {*algorithm.local}, f"{name}: a vector is either own or local"
    srv, down, _ = _start(algorithm)
    _same(f"{name}.init returns", srv.names(), (*algorithm.down, *algorithm.server))
    _same(f"{name}.sent returns", down.names(), algorithm.down)
    own = _call(f"{name}.first_contact", algorithm.first_contact, down)
    _same(f"{name}.first_contact returns", own.names(), algorithm.own)
    me = own.replace(**{n: torch.zeros_like(down.w) for n in algorithm.local})
    w = _call(f"{name}.start", algorithm.start, down, me)
    _, new = _call(f"{name}.direction", algorithm.direction, w, _quadratic(0), down, me)
    _same(f"{name}.direction returns", new.names(), (*algorithm.own, *algorithm.local))
    _call(f"{name}.pull", algorithm.pull, w, down)
    kept, up = _call(f"{name}.finish", algorithm.finish, w, down, new, Round(0, LR, STEPS, 0.5))
    _same(f"{name}.finish keeps", set(kept.names()) - set(algorithm.local), algorithm.own)
    _same(f"{name}.finish sends", up.names(), algorithm.up)
    after = _call(f"{name}.aggregate", algorithm.aggregate, srv, up, Round(0, LR, float(STEPS), 0.5))
    _same(f"{name}.aggregate returns", after.names(), (*algorithm.down, *algorithm.server))


def check_use(algorithm: Algorithm) -> None:
    """What is declared matters: a change of any declared vector changes what comes of it."""
    algorithm = _generic(algorithm)
    srv, down, own = _start(algorithm)
    mean, rnd = _random(algorithm.up, 3), Round(1, LR, float(STEPS), 0.5)

    def client(down: Vectors, own: Vectors, before: str = "", after: str = "") -> Vectors:
        kept, up = _client(algorithm, down, own, _quadratic(0), nudge=(before, after))
        return Vectors(**{f"up {n}": v for n, v in up.items()}, **{f"own {n}": v for n, v in kept.items()})

    def server(srv: Vectors, mean: Vectors) -> Vectors:
        return algorithm.aggregate(srv, mean, rnd)

    plain, served = client(down, own), server(srv, mean)
    for n in algorithm.down:
        _matters(algorithm, "down", n, plain, client(_nudged(down, n), own))
    for n in algorithm.own:
        changed = client(down, _nudged(own, n))
        _matters(algorithm, "own", n, _without(plain, f"own {n}"), _without(changed, f"own {n}"))
    for n in algorithm.local:
        changed = client(down, own, before=n)
        changed = client(down, own, after=n) if _equal(plain, changed) else changed
        _matters(algorithm, "local", n, plain, changed)
    for n in algorithm.up:
        _matters(algorithm, "up", n, served, server(srv, _nudged(mean, n)))
    for n in algorithm.server:
        sent = algorithm.sent(server(_nudged(srv, n), mean))
        _matters(algorithm, "server", n, algorithm.sent(served), sent)


def check_purity(algorithm: Algorithm) -> None:
    """The functions change neither their arguments nor the method, and the same input gives the same output."""
    srv, down, own = _start(algorithm)
    me = own.replace(**{n: torch.zeros_like(down.w) for n in algorithm.local})
    w, up = _random(("w",), 4).w, _random(algorithm.up, 3)
    rnd = Round(1, LR, STEPS, 0.5)
    calls: dict[str, Callable[[], Any]] = {
        "init": lambda: algorithm.init(w),
        "sent": lambda: algorithm.sent(srv),
        "first_contact": lambda: algorithm.first_contact(down),
        "start": lambda: algorithm.start(down, me),
        "direction": lambda: algorithm.direction(w, _quadratic(0), down, me),
        "pull": lambda: algorithm.pull(w, down),
        "finish": lambda: algorithm.finish(w, down, me, rnd),
        "aggregate": lambda: algorithm.aggregate(srv, up, rnd),
    }
    given = {"server": srv, "down": down, "me": me, "w": Vectors(w=w), "up": up}
    copies = {label: v.map(torch.clone) for label, v in given.items()}
    fields = dict(vars(algorithm))
    for label, call in calls.items():
        first, second = _tensors(call()), _tensors(call())
        for which, v in given.items():
            assert v.names() == copies[which].names() and _equal(v, copies[which]), (  # noqa: PT018
                f"{algorithm.label}.{label} changed its argument {which}: return new vectors instead"
            )
        assert len(first) == len(second), f"{algorithm.label}.{label} returns now more, now less"
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), (
            f"{algorithm.label}.{label} gives two answers to one question: it must be a pure function"
        )
        assert vars(algorithm).keys() == fields.keys(), f"{algorithm.label}.{label} stored something on the method"
        assert all(vars(algorithm)[k] is v for k, v in fields.items()), f"{algorithm.label}.{label} changed a field"


def check_rows(algorithm: Algorithm) -> None:
    """C clients at once, ``[C, P]``, give row by row what each gives alone, ``[P]``; so do C servers."""
    srv, down, _ = _start(algorithm)
    owns = _random(algorithm.own, 5, rows=CLIENTS)
    kept, ups = _client(algorithm, down, owns, _quadratic(None))
    first = _client(algorithm, down, _rows_of(algorithm.first_contact(down)), _quadratic(None))
    wide = _client(algorithm, _rows_of(down), owns, _quadratic(None))
    for c in range(CLIENTS):
        row = owns.map(itemgetter(c))
        alone = _client(algorithm, down, row, _quadratic(c))
        _close(f"{algorithm.label}: client {c} of {CLIENTS} is not what it is alone", (kept, ups), alone, c)
        _close(f"{algorithm.label}: with down of shape [C, P] client {c} differs", wide, alone, c)
        new = _client(algorithm, down, algorithm.first_contact(down), _quadratic(c))
        _close(f"{algorithm.label}: client {c}, met for the first time, differs in a batch", first, new, c)
    servers, means = _random(srv.names(), 6, rows=CLIENTS).map(torch.abs), _random(algorithm.up, 7, rows=CLIENTS)
    rnd = Round(1, LR, float(STEPS), 0.5)
    together = algorithm.aggregate(servers, means, rnd)
    for c in range(CLIENTS):
        after = algorithm.aggregate(servers.map(itemgetter(c)), means.map(itemgetter(c)), rnd)
        _close(f"{algorithm.label}.aggregate: server {c} of {CLIENTS} differs", (together,), (after,), c)


def check_hyperparameters(algorithm: Algorithm) -> None:
    """Numbers may be ``[C, 1]`` tensors, for several runs in one batch: each row is the run with its own numbers."""
    scales = [1.0, 0.9, 0.8]
    each = [_scaled(algorithm, s) for s in scales]
    many = _scaled(algorithm, torch.tensor(scales, dtype=torch.float64)[:, None])
    w = _random(("w",), 8, rows=CLIENTS).w
    servers, owns = many.init(w), _random(algorithm.own, 5, rows=CLIENTS)
    kept, ups = _client(many, many.sent(servers), owns, _quadratic(None))
    after = many.aggregate(servers, ups, Round(0, LR, float(STEPS), 0.5))
    for c, one in enumerate(each):
        srv = one.init(w[c])
        own, up = _client(one, one.sent(srv), owns.map(itemgetter(c)), _quadratic(c))
        text = f"{algorithm.label}: with hyper-parameters of shape [C, 1], run {c} differs"
        _close(text, (kept, ups), (own, up), c)
        _close(text, (after,), (one.aggregate(srv, up, Round(0, LR, float(STEPS), 0.5)),), c)


def check_compiles(algorithm: Algorithm) -> None:
    """A whole round is one graph under ``torch.compile``, and the compiled round gives the same numbers."""
    srv, down, _ = _start(algorithm)
    owns = _random(algorithm.own, 5, rows=CLIENTS)
    target, grad = _centres(), _quadratic(None)

    def a_round(srv: Vectors, down: Vectors, own: Vectors, target: Tensor) -> tuple[Vectors, Vectors]:
        kept, up = _client(algorithm, down, own, lambda v: _curvature(None) * (v - target))
        return kept, algorithm.aggregate(srv, up.map(lambda v: v.mean(0)), Round(0, LR, float(STEPS), 0.5))

    torch.compiler.reset()
    try:
        compiled = torch.compile(a_round, fullgraph=True, backend="eager")(srv, down, owns, target)
    except Exception as e:
        reason = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise AssertionError(f"{algorithm.label} does not trace into one graph: {reason}") from e
    finally:
        torch.compiler.reset()
    kept, up = _client(algorithm, down, owns, grad)
    after = algorithm.aggregate(srv, up.map(lambda v: v.mean(0)), Round(0, LR, float(STEPS), 0.5))
    _close(f"{algorithm.label}: compiled and plain rounds differ", compiled, (kept, after))


def _client(
    algorithm: Algorithm, down: Vectors, own: Vectors, grad: Gradient, nudge: tuple[str, str] = ("", "")
) -> tuple[Vectors, Vectors]:
    """One client's round, or C clients': the own vectors and what is sent. ``nudge`` disturbs a local vector."""
    zero = torch.zeros_like(grad(down.w))
    me = own.replace(**dict.fromkeys(algorithm.local, zero))
    me = _nudged(me, nudge[0]) if nudge[0] else me
    w = algorithm.start(down, me).expand_as(zero)
    for _ in range(STEPS):
        w, me = local_step(algorithm, RULE, w, grad, down, me, LR)
    me = _nudged(me, nudge[1]) if nudge[1] else me
    me, up = algorithm.finish(w, down, me, Round(1, LR, STEPS, 0.5))
    return me.pick(algorithm.own), up.pick(algorithm.up)


def _start(algorithm: Algorithm) -> tuple[Vectors, Vectors, Vectors]:
    """A server in the middle of a run, what it sends, and a client it has met: no vector is zero."""
    srv = algorithm.init(_random(("w",), 0).w)
    srv = srv.replace(**{n: v for n, v in _random(srv.names(), 1).map(torch.abs).items() if n != "w"})
    return srv, algorithm.sent(srv), _random(algorithm.own, 2)


def _random(names: Iterable[str], place: int, rows: int | None = None) -> Vectors:
    shape = (SIZE,) if rows is None else (rows, SIZE)
    generator = torch_stream(0, "contract", place)
    return Vectors(**{n: torch.randn(shape, generator=generator, dtype=torch.float64) for n in names})


def _curvature(client: int | None) -> Tensor:
    a = 1.0 + torch.arange(CLIENTS * SIZE, dtype=torch.float64).reshape(CLIENTS, SIZE) / 10
    return a if client is None else a[client]


def _centres() -> Tensor:
    return _random(("b",), 9, rows=CLIENTS).b


def _quadratic(client: int | None) -> Gradient:
    """The gradient of a quadratic of one client, or of all of them at once."""
    a, b = _curvature(client), _centres() if client is None else _centres()[client]
    return lambda v: a * (v - b)


def _nudged(v: Vectors, name: str) -> Vectors:
    part = getattr(v, name)
    far = 100 * getattr(_random((name,), 10), name)  # far enough to turn signs, on which a method may depend alone
    return v.replace(**{name: part + far})


def _without(v: Vectors, name: str) -> Vectors:
    return v.pick(tuple(n for n in v.names() if n != name))


def _rows_of(v: Vectors) -> Vectors:
    return v.map(lambda x: x.expand(CLIENTS, SIZE))


def _generic(algorithm: Algorithm) -> Algorithm:
    """The method with numbers other than 0 and 1, which switch terms off: FedCM's alpha = 1 needs no momentum."""
    changes: dict[str, Any] = {}
    for name, value in algorithm.options().items():
        if isinstance(value, Algorithm):
            changes[name] = _generic(value)
        elif isinstance(value, float) and value in (0.0, 1.0):
            changes[name] = 0.5 if value == 0 else 0.9
    return dataclasses.replace(algorithm, **changes)


def _scaled(algorithm: Algorithm, by: Any) -> Algorithm:
    """The method with every number among its hyper-parameters scaled, also those of a method inside it."""
    changes: dict[str, Any] = {}
    for name, value in algorithm.options().items():
        if isinstance(value, Algorithm):
            changes[name] = _scaled(value, by)
        elif isinstance(value, float):
            changes[name] = value * by
    return dataclasses.replace(algorithm, **changes)


def _call(what: str, f: Callable[..., Any], *args: Any) -> Any:
    try:
        return f(*args)
    except AttributeError as e:
        raise AssertionError(f"{what} reads what is not declared for it: {e}") from e


def _same(what: str, got: Iterable[str], declared: Iterable[str]) -> None:
    assert set(got) == set(declared), f"{what} {sorted(got)}, but {sorted(declared)} are declared"


def _matters(algorithm: Algorithm, place: str, name: str, plain: Vectors, changed: Vectors) -> None:
    assert not _equal(plain, changed), f"{algorithm.label}.{place} declares {name!r}, but nothing depends on it"


def _equal(a: Vectors, b: Vectors) -> bool:
    return all(torch.equal(v, getattr(b, n)) for n, v in a.items())


def _tensors(result: Any) -> list[Tensor]:
    parts = result if isinstance(result, tuple) else (result,)
    return [t for p in parts if p is not None for t in ([p] if isinstance(p, Tensor) else [v for _, v in p.items()])]


def _close(text: str, got: Iterable[Vectors], expected: Iterable[Vectors], row: int | None = None) -> None:
    for a, b in zip(got, expected, strict=True):
        for name, e in b.items():
            g = getattr(a, name) if row is None else getattr(a, name)[row]
            assert g.shape == e.shape, f"{text}: {name} has shape {tuple(g.shape)}, not {tuple(e.shape)}"
            gap = float((g - e).abs().max())
            assert gap <= 1e-12 * (1 + float(e.abs().max())), f"{text}: {name} is off by {gap:.1e}"
