"""A page for each method, made from its file: the box, the vectors, the hyper-parameters, the code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from cells import cell, code, table
from links import ROOT

from fedsmoo.algorithms import ALGORITHMS
from fedsmoo.commands.describe import PLACES, fields_of, first_line
from fedsmoo.core import Algorithm
from fedsmoo.paper.searched import recommended
from fedsmoo.runs.build import make_algorithm
from fedsmoo.runs.traffic import count_vectors, paper_vectors
from fedsmoo.sweeps.cost import gradients_of_a_step

# What a method is about -> the names of those that are.
KINDS = {
    "Averaging": ("fedavg", "fedprox", "fednova", "fedexp"),
    "Momentum and optimisers on the server": ("fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedcm", "fedacg"),
    "Client drift corrected": ("scaffold", "feddyn", "feddc"),
    "Flat minima": (
        "fedsam", "mofedsam", "fedgamma", "fedsmoo", "fedspeed", "fedlesam", "fedlesam-s", "fedlesam-d", "fednsam",
        "fedgloss", "fedwmsam", "fedgmt", "fedswa", "fedmoswa",
    ),
    "Losses of their own": ("moon", "fedntd", "fedlc"),
    "Personal models": ("ditto", "fedper", "fedrep", "fedbn", "pfedme"),
    "Fair to all clients": ("qfedavg",),
    "Robust to attackers": ("median", "trimmed-mean", "krum", "multi-krum", "rfa", "norm-bounded"),
}  # fmt: skip


def label(name: str) -> str:
    """Return what a method is called."""
    return ALGORITHMS[name].__name__


def refuse_unsorted() -> None:
    """Refuse methods that are of no kind, or of two."""
    sorted_in = sorted(name for names in KINDS.values() for name in names)
    if sorted_in != sorted(ALGORITHMS):
        raise SystemExit(f"website/methods.py: of no kind, or of two: {sorted(set(ALGORITHMS) ^ set(sorted_in))}")


def method_pages() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every page about methods, the index first."""
    refuse_unsorted()
    yield "methods/index.md", index()
    for name in ALGORITHMS:
        yield f"methods/{name}.md", page(name)


def nav() -> list[dict[str, list[dict[str, str]]]]:
    """Return the methods by kind, for the navigation."""
    return [{kind: [{label(n): f"methods/{n}.md"} for n in names]} for kind, names in KINDS.items()]


def index() -> str:
    """Return the index by kind."""
    parts = [INDEX.format(count=len(ALGORITHMS))]
    for kind, names in KINDS.items():
        rows = []
        for name in names:
            algorithm = make_algorithm(name, {})
            up, down, _ = count_vectors(algorithm)
            kept = sum(n not in algorithm.scalars for n in algorithm.own)
            numbers = [str(x) for x in (down, up, kept, gradients_of_a_step(algorithm))]
            rows.append([f"[{label(name)}]({name}.md)", cell(first_line(ALGORITHMS[name])), *numbers])
        header = ["method", "in a line", "sent down", "sent up", "kept", "gradients"]
        parts.append(f"## {kind}\n\n{table(header, rows, numbers=4)}")
    return "\n".join(parts)


def page(name: str) -> str:
    """Return the page of one method."""
    cls, algorithm = ALGORITHMS[name], make_algorithm(name, {})
    line, _, box = (inspect.getdoc(cls) or "").partition("\n")
    module = cls.__module__.rpartition(".")[2]
    assert (ROOT / "docs" / "algorithms" / f"{module}.md").is_file(), module
    options = [[code(n), code(d), cell(m)] for n, d, m in fields_of(cls)]
    return PAGE.format(
        name=name,
        label=label(name),
        line=cell(line),
        paper=cell(inspect.getdoc(inspect.getmodule(cls)) or ""),
        box=inspect.cleandoc(box) if box.strip() else line,
        family=module,
        vectors=vectors(algorithm),
        options=table(["name", "default", "meaning"], options) if options else "None.\n",
        set=next((f" --set {n}={d}" for n, d, _ in fields_of(cls) if is_number(d)), ""),
        source=inspect.getsource(cls).rstrip(),
        recommended=recommendation(name),
    )


def recommendation(name: str) -> str:
    """Return a section with the settings that a search found best, if there was one."""
    found = recommended(name)
    lines = "\n".join(f"- {cell(line)}" for line in found or ())
    return f"\n## Settings that a search found best\n\n{lines}\n" if lines else ""


def is_number(text: str) -> bool:
    """Return whether a default is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def vectors(algorithm: Algorithm) -> str:
    """Return where the vectors of a method live, and what travels."""
    rows = [
        [code(place), ", ".join(code(n) for n in getattr(algorithm, place)), cell(where)]
        for place, where in PLACES.items()
        if getattr(algorithm, place)
    ]
    rows += [["mask", code(mask), f"the parameters {code(patterns)}"] for mask, patterns in algorithm.masks.items()]
    up, down, numbers = count_vectors(algorithm)
    single = f" and {numbers} single numbers" if numbers else ""
    count = f"In a round {up + down} vectors{single} travel to and from a client (the FedSMOO paper's way to count: "
    return f"{table(['place', 'vectors', ''], rows)}\n{count}{paper_vectors(algorithm)}).\n"


INDEX = """# Methods

{count} methods, each a short file that reads like the box in its paper and is held to a literal transcription of it by
a test. `fedsmoo show NAME` prints a method's box; `--algorithm NAME` runs it. Vectors are counted per client and round:
sent down to it, sent up from it, kept by it between rounds; the last column counts gradients of a local step.
[Notes on the papers](../algorithms/README.md) have the formulas, and where released code differs.
"""
PAGE = """---
hide: [toc]
---

# {label}

{line}

{paper}

## The box

```text
{box}
```

`g` is the gradient of a minibatch, `w` the global and `w_i` a local model, `lr` the local learning rate, `n` of `m`
clients take part. In formulas, with the choices that were made and where the authors' released code differs:
[notes on the paper](../algorithms/{family}.md). A test holds the code below to a literal transcription of the box.

## Vectors

{vectors}
## Hyper-parameters

{options}
## Use it

```bash
fedsmoo run --algorithm {name}{set} --rounds 20
```

```python
import fedsmoo

method = fedsmoo.{label}()
result = fedsmoo.simulate("mlp", "digits", method, clients=20, cohort=4, rounds=20)
```

## The code

```python
{source}
```
{recommended}"""
