"""Export a finished model for others: its weights as safetensors, and a model card that says how it came about."""

from __future__ import annotations

import json
import shutil
from os import PathLike
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, as_path, as_word
from fedsmoo.core.untrusted import text
from fedsmoo.runs.config import changed_settings, free_within
from fedsmoo.runs.division import make_partition
from fedsmoo.runs.origin.samples import data_label
from fedsmoo.runs.results.finished import refuse_damaged_model
from fedsmoo.runs.results.summary import read_ending
from fedsmoo.runs.storage.files import make_folder, write_durably
from fedsmoo.runs.storage.names import CONFIG, LABEL, METRICS, MODEL, STARTED, SUMMARY
from fedsmoo.runs.storage.reader import StoredRun, read_config, read_run
from fedsmoo.runs.traffic import human_bytes
from fedsmoo.runs.watch.changes import changes_in_words

CARD = "README.md"  # what hubs show of a model
# Settings that the card says in words of its own; all others that are not at their defaults stand in a row.
SAID = (
    "algorithm", "model", "dataset", "partition", "u", "c", "clients", "split", "rounds", "cohort", "local_epochs",
    "local_steps", "batch_size", "lr", "seed",
)  # fmt: skip
KEPT = (CONFIG, STARTED, METRICS, SUMMARY, LABEL, MODEL)  # with which the folder is a run that fedsmoo.load opens


def export_model(run: str | PathLike[str], to: str | PathLike[str]) -> Path:
    """Write a finished run's model, its numbers and a model card into a new folder; no code that it names is run.

    Args:
        run: the run's folder.
        to: the new folder, which can be published as it is.

    Returns:
        The model card.

    Raises:
        FedsmooError: if the run has not finished, its model is damaged, or there is something in the folder.
    """
    source, target = as_path(run, "run"), as_path(to, "to")
    found = read_run(source, strict=True)
    if not found.summary or not (source / MODEL).is_file():
        read_config(source)  # a folder that is no run says so
        raise FedsmooError(f"{source} has no finished model: go on with 'fedsmoo resume {as_word(source)}'")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FedsmooError(f"{target} is there already and not an empty folder: choose another, nothing was written")
    refuse_damaged_model(source)
    try:
        make_folder(target)
        for name in KEPT:
            if (source / name).is_file() and not (source / name).is_symlink():
                shutil.copyfile(source / name, target / name)
        write_durably(target / CARD, model_card(found))
    except OSError as e:
        raise FedsmooError(f"cannot write the model into {target}: {e.strerror}") from e
    return target / CARD


def model_card(run: StoredRun) -> str:
    """Return a model card: metadata that hubs read, how the model was trained, how good it is, how to load it."""
    c, method = run.config, text(run.label or run.config.algorithm)
    table = "\n".join(f"| {name} | {value} |" for name, value in training_rows(run, method).items())
    again = text(str(run.facts.get("again") or "fedsmoo run config.toml"), 1000)
    if again.startswith("fedsmoo run CONFIG"):  # as runs of before said where no flags can say it
        again = "fedsmoo run config.toml"
    return f"""---
{metadata(run, method)}
---

# {text(c.model)} by {method} on {name_of_data(run)}

A model trained by federated optimisation: clients kept their samples, and sent what the method sends.

| | |
|---|---|
{table}

## Use it

```python
from safetensors.torch import load_file

state = load_file("model.safetensors")  # the module's own parameter names
```

This folder is a run of fedsmoo, too: `fedsmoo.load(".").model` is the module with these weights in eval mode, and
`fedsmoo report .` shows how it was trained. `config.toml` holds every setting, `summary.json` every number, versions
and the machine. To make it again:

```sh
{again}
```

## Limits

{note_of_staying(run, method)}\
The score is of the data set's own test part, and of one seed. Nothing is said about data of another origin; what single
clients see may be better or worse by far (`fedsmoo analyse fairness`). Training on clients alone gives no
guarantee of privacy.
"""


def training_rows(run: StoredRun, method: str) -> dict[str, str]:
    """Return how a model was trained and how good it is, by the names of a table's rows."""
    c, summary, end = run.config, run.summary, read_ending(run.summary)
    shown = "not evaluated" if end.last is None else end.lead.text(end.last)
    shown = f"{'none' if end.last is None else shown} ({end.lacking})" if end.lacking else shown
    named = c.split is None and c.partition != "natural"
    division = text(make_partition(c).name if named else c.partition if c.split is None else "a split file")
    apart = {n: v for n, v in changed_settings(c).items() if n not in (*SAID, *free_within("run"))}
    changed = changes_in_words(summary.get("changes") or [])
    return {
        "method": method,
        "data": f"{name_of_data(run)}, {division} over {c.clients} clients",
        "rounds": f"{summary['rounds']}, {c.cohort} clients each",
        **({"not trained": names} if (names := names_of_staying(run)) else {}),
        "local training": f"{c.epochs or c.local_steps} {'epochs' if c.epochs else 'steps'}, batches of "
        f"{c.batch_size}, learning rate {c.lr}",
        **({"other settings": text(", ".join(f"{n} = {v}" for n, v in apart.items()), 1000)} if apart else {}),
        **({"changed on the way": text(changed, 1000)} if changed else {}),
        "sent": f"{human_bytes(summary['bytes_up'])} up, {human_bytes(summary['bytes_down'])} down",
        f"{end.lead.title} at the end": shown,
        "seed": str(c.seed),
        "made by": f"fedsmoo {text(str((run.facts.get('versions') or {}).get('fedsmoo')))}",
    }


def names_of_staying(run: StoredRun) -> str:
    """Name the parameters that clients keep to themselves; older runs only record how many numbers these are."""
    count, names = run.facts.get("parameters_staying") or 0, run.facts.get("staying") or []
    said = ", ".join(f"`{text(str(name)).replace('`', '')}`" for name in names)
    return said or (f"{count} of {run.facts.get('parameters')} numbers" if count else "")


def note_of_staying(run: StoredRun, method: str) -> str:
    """Return a paragraph on the parameters that no server has learnt, where the method leaves some with the clients."""
    names = names_of_staying(run)
    if not names:
        return ""
    return f"""**Not trained: {names}.** {method} leaves these with each client, and they are never sent or averaged: in
this file they are as they were before the first round. The score above is of the model with them. Take them from a
client, or train them on data of your own, before you use the model.

"""


def name_of_data(run: StoredRun) -> str:
    """Return the data set's name, with a part of its fingerprint where the content is not what the name says."""
    return text(data_label(run.config.dataset, run.facts), 200)


def metadata(run: StoredRun, method: str) -> str:
    """Return the card's metadata in YAML, of which JSON is a part: values of strangers stay values."""
    c, end = run.config, read_ending(run.summary)
    data = {"type": text(c.dataset), "name": name_of_data(run)}
    fields: dict[str, Any] = {
        "library_name": "fedsmoo",
        "tags": ["federated-learning", "pytorch", "safetensors", method],
        "datasets": [text(c.dataset)],
    }
    if end.last is not None:
        score = {"type": end.lead.name, "value": end.last}
        task = {"type": "other", "name": "federated optimisation"}
        fields["metrics"] = [end.lead.name]
        results = [{"task": task, "dataset": data, "metrics": [score]}]
        fields["model-index"] = [{"name": f"{text(c.model)}-{method}", "results": results}]
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in fields.items())
