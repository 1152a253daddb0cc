"""``fedsmoo list`` and ``fedsmoo show``: what there is, in words."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from fedsmoo.commands.console import console, print_hanging
from fedsmoo.core.errors import unknown
from fedsmoo.core.hyper.options import interval_in_words
from fedsmoo.core.hyper.schedule import FORMS

KINDS = (
    "algorithms", "optimizers", "schedules", "models", "losses", "metrics", "datasets", "partitions", "cohorts",
    "engines",
)  # fmt: skip
# How to bring one's own, by the flag that names it.
OWN = {
    "algorithms": "--algorithm path/to/file.py:Class, a class derived from fedsmoo.Algorithm",
    "optimizers": "--local-optimizer path/to/file.py:Class, a class derived from fedsmoo.Around",
    "schedules": "--local-schedule path/to/file.py:Class, a class derived from fedsmoo.Around",
    "models": "--model path/to/file.py:function, which returns an nn.Module",
    "losses": "--loss path/to/file.py:function of (outputs, labels): one loss per sample",
    "metrics": "--metrics path/to/file.py:function of (outputs, targets): a number; less is better with - before it",
    "datasets": "--dataset path/to/file.py:function of (seed) or of nothing: x_train, y_train, x_test, y_test",
    "partitions": "--partition path/to/file.py:function of (labels, classes, clients, seed): each client's indices",
    "cohorts": "--sampling path/to/file.py:function of (seed, round, clients, cohort): the clients of the round",
}

# One of each kind that any machine can try, on digits.
TRY = {
    "optimizers": "--local-optimizer adamw",
    "schedules": "--local-schedule cosine",
    "models": "--model softmax",
    "losses": "--loss cross_entropy",
    "metrics": "--metrics f1",
    "datasets": "--dataset synthetic",
    "partitions": "--partition shards-2",
    "cohorts": "--sampling round_robin",
    "engines": "--engine serial",
}

# Where the vectors of a method live.
PLACES = {
    "down": "server -> client, every round",
    "up": "client -> server, every round (only the mean is used, but for rows)",
    "rows": "of up, what the server sees client by client",
    "server": "stays on the server",
    "own": "stays on each client between rounds",
    "local": "lives on a client for one round",
}


def first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def fields_of(cls: type) -> list[tuple[str, str, str]]:
    """Return name, default and meaning of a dataclass's fields."""
    return [
        (f.name, str(f.default), f.metadata.get("help", "") + allowed_values(f.metadata))
        for f in dataclasses.fields(cls)
    ]


def allowed_values(meta: Mapping[str, Any]) -> str:
    """Return what a field may be, where it says so."""
    if meta.get("within"):
        return f" ({interval_in_words(meta['within'])})"
    return f" ({' | '.join(meta['choices'])})" if meta.get("choices") else ""


def entries(kind: str) -> list[tuple[str, str, list[tuple[str, str, str]]]]:
    """Return name, one line, and fields of everything of a kind."""
    from fedsmoo.algorithms import ALGORITHMS
    from fedsmoo.algorithms.choices import CHOICES
    from fedsmoo.data.batches.cohort import SAMPLINGS
    from fedsmoo.data.division.partition import PARTITIONS
    from fedsmoo.data.sources import SOURCES
    from fedsmoo.engines.choose import ENGINES
    from fedsmoo.metrics.metric import EXAMPLES
    from fedsmoo.metrics.quantity import quantity
    from fedsmoo.models import MODELS, model_options
    from fedsmoo.models.loss import LOSSES

    if kind == "algorithms":
        return [(n, first_line(c), fields_of(c)) for n, c in ALGORITHMS.items()]
    if kind in ("optimizers", "schedules"):
        made, plain = CHOICES[f"local_{kind.removesuffix('s')}"]
        fields = {n: [f for f in fields_of(c) if f[0] != "inner"] for n, c in made.items()}
        return [(plain, "the method's own steps", []), *((n, first_line(c), fields[n]) for n, c in made.items())]
    if kind == "models":
        return [(n, line, [(o, str(d), "") for o, d in model_options(n).items()]) for n, (line, _) in MODELS.items()]
    if kind == "partitions":
        rules = [(n, first_line(c), fields_of(c)) for n, c in PARTITIONS.items()]
        return [
            *rules,
            ("natural", "The data's own clients, where it has them: speakers of a text, synthetic ones.", []),
        ]
    if kind == "datasets":
        return [(n, line, []) for n, line in SOURCES.items()]
    if kind == "metrics":
        return [
            (n, f"{quantity(n).title}, {'higher' if quantity(n).higher else 'lower'} is better", []) for n in EXAMPLES
        ]
    if kind == "engines":
        return [(n, line, []) for n, line in ENGINES.items()]
    functions: Mapping[str, Any] = LOSSES if kind == "losses" else SAMPLINGS
    return [(n, first_line(function), []) for n, function in functions.items()]


def list_things(kind: Annotated[str | None, typer.Argument(help=" | ".join(KINDS), show_default=False)] = None) -> None:
    if kind is not None and kind not in KINDS:
        raise unknown("kind of thing", kind, KINDS)
    from rich.markup import escape

    out = console()
    for each in [kind] if kind else KINDS:
        out.print(f"[bold]{each}[/bold]")
        for name, line, fields in entries(each):
            print_hanging(out, f"  [bold]{escape(f'{name:<22}')}[/bold] ", line)
            for field, default, meaning in fields if kind else ():
                print_hanging(out, f"  {'':<22}   {escape(f'{field} = {default}')}  ", meaning, "dim")
        if each in OWN:
            print_hanging(out, f"  [bold]{'your own':<22}[/bold] ", OWN[each])
        out.print()
    if kind is None:
        print_hanging(out, "[bold]options[/bold]  ", f"fedsmoo list {' | '.join(KINDS)}")
    tried = f"fedsmoo run --algorithm fedsmoo {TRY[kind]}" if kind in TRY else "fedsmoo show fedsmoo"
    print_hanging(out, "[bold]next[/bold]  ", tried)


def show(name: Annotated[str, typer.Argument(help="A method: a name, or path/to/file.py:Class.")]) -> None:
    from rich.markup import escape

    from fedsmoo.paper.searched import recommended
    from fedsmoo.runs.build import algorithm_class, make_algorithm
    from fedsmoo.runs.traffic import count_vectors, paper_vectors

    cls, algorithm = algorithm_class(name), make_algorithm(name, {})
    out = console()
    source = (inspect.getdoc(inspect.getmodule(cls)) or "").replace("\n", " ")
    out.print(f"[bold]{cls.__name__}[/bold]   [dim]{escape(source)}[/dim]\n")
    for line in (inspect.getdoc(cls) or "").splitlines():
        role = re.match(r"(\w+ {2,}| *)", line)
        lead = role[0] if role else ""
        print_hanging(out, lead, line.removeprefix(lead))
    out.print()
    out.print("[bold]vectors[/bold]")
    for label, where in PLACES.items():
        print_hanging(out, f"  {label:<7} {', '.join(getattr(algorithm, label)) or '-':<14} ", where, "dim")
    for mask, patterns in algorithm.masks.items():
        stays = ": they stay at the clients, and do not travel" if mask in algorithm.stays else ""
        print_hanging(out, f"  mask    {mask:<14} ", f"the parameters {patterns}{stays}", "dim")
    up, down, numbers = count_vectors(algorithm)
    travels = f"{up + down} vectors" + (f" and {numbers} single numbers" if numbers else "")
    out.print(f"  a client and round: {travels} travel (the paper counts {paper_vectors(algorithm)})\n")
    out.print("[bold]hyper-parameters[/bold]")
    for field, default, meaning in fields_of(cls):
        print_hanging(out, f"  {field:<14} {escape(f'{default:<8}')} ", meaning, "dim")
    print_hanging(out, "  ", f"a number may move with the round: {FORMS}", "dim")
    if found := recommended(name.lower()):
        out.print("\n[bold]recommended[/bold]")
        for line in found:
            print_hanging(out, "  ", line)
    out.print()
    print_hanging(out, "[bold]next[/bold]  ", f"fedsmoo run --algorithm {name} --dataset digits")
