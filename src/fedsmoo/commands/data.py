"""``fedsmoo data``: get a data set, split it over clients, look at a split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsmoo.commands.command import Command, Group, TorchCommand
from fedsmoo.commands.console import console
from fedsmoo.commands.options import parse_word, split_word
from fedsmoo.commands.run import Trust
from fedsmoo.commands.screen import next_step
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import text
from fedsmoo.data.catalog import SPECS
from fedsmoo.runs.config import FIELDS, Config

app = typer.Typer(cls=Group, help="Get data sets, split them over clients, look at splits.", no_args_is_help=True)
Where = Annotated[str | None, typer.Option("--data", help="Folder or .npz of the data set (default: the cache).")]
Set = Annotated[str, typer.Argument(help="A data set: a name, or text:, leaf: or table:PATH.")]


@app.command(
    "get", cls=Command, help="Download a data set into the cache (or --to a folder), with checksum and resume."
)
def get(
    name: Annotated[str, typer.Argument(help=" | ".join(SPECS))],
    to: Annotated[Path | None, typer.Option(help="Folder (default: the cache).")] = None,
) -> None:
    from fedsmoo.data.files.download import fetch_dataset

    console().print(f"{name}: {fetch_dataset(name, to)}", soft_wrap=True)
    next_step(f"fedsmoo run --algorithm fedsmoo --dataset {name}", *([] if to is None else ["--data", str(to)]))


@app.command("split", cls=TorchCommand, help="Divide a data set over clients and keep the division in a small file.")
def split(
    dataset: Set,
    out: Annotated[Path, typer.Option(help="The split file to write.")],
    partition: Annotated[
        str | None,
        typer.Option(help="iid, dirichlet, shards-2, ... (see fedsmoo list partitions; default as in a run)."),
    ] = None,
    u: Annotated[float | None, typer.Option(help="dirichlet: concentration (default 0.1).")] = None,
    c: Annotated[int | None, typer.Option(help="pathological: classes per client (default 3).")] = None,
    replacement: Annotated[
        bool | None, typer.Option(help="Draw with replacement, as in the paper (default, but for iid).")
    ] = None,
    refill: Annotated[
        bool | None, typer.Option(help="Deal classes from refilled decks, as released code does.", show_default=False)
    ] = None,
    clients: Annotated[int | None, typer.Option(help="Clients in all (default 100).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the division.")] = 0,
    data: Where = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the partition or data set; may be said again."),
    ] = None,
) -> None:
    from fedsmoo.data.division.partition import to_rule
    from fedsmoo.data.division.splitfile import save_split
    from fedsmoo.runs.division import make_clients, make_partition, refuse_unused_options, resolve_division
    from fedsmoo.runs.origin.trust import code_in, remember
    from fedsmoo.runs.origin.user_files import load_data, refuse_missing

    options = {"partition": partition, "u": u, "c": c, "replacement": replacement}
    options |= {"refill": refill, "clients": clients}
    given = {n: v for n, v in options.items() if v is not None}
    config = Config(**with_sets({"dataset": dataset, "data": data, "seed": seed, **given}, sets or ()))
    config = resolve_division(config, given)
    refuse_unused_options(config, given)
    refuse_missing(config)
    loaded = load_data(config)
    refuse_existing(out)
    rule = {"name": "natural"} if config.partition == "natural" else to_rule(make_partition(config))
    indices = make_clients(config, loaded)
    remember(code_in(config))
    save_split(out, indices, loaded, rule, seed)
    console().print(f"{out}: {len(indices)} clients of {dataset}, {config.partition}, seed {seed}", soft_wrap=True)
    next_step("fedsmoo data show", out, *([] if data is None else ["--data", data]))


@app.command(
    "import", cls=TorchCommand, help="Turn another simulator's index lists or client arrays into a split file."
)
def import_(
    source: Annotated[Path, typer.Argument(help="A file of index lists, or a folder of client arrays.")],
    dataset: Annotated[str, typer.Option(help="The data set that it divides.")],
    out: Annotated[Path, typer.Option(help="The split file to write.")],
    data: Where = None,
) -> None:
    from fedsmoo.data.division.splitfile import import_split, save_split
    from fedsmoo.data.sources import load

    loaded = load(dataset, data)
    refuse_existing(out)
    indices = import_split(source, loaded)
    save_split(out, indices, loaded, {"name": "imported"}, 0)
    console().print(f"{out}: {len(indices)} clients of {dataset}", soft_wrap=True)
    next_step("fedsmoo data show", out, *([] if data is None else ["--data", data]))


@app.command("show", cls=TorchCommand, help="A split in numbers and pictures: who holds which class, and class totals.")
def show(
    split: Annotated[Path, typer.Argument(help="A split file.")],
    data: Where = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the pictures (default: beside the split).")] = None,
    suffix: Annotated[str, typer.Option("--format", help="png, pdf or svg.")] = "png",
    trust: Trust = False,
) -> None:
    from fedsmoo.core.user_code import judged
    from fedsmoo.data.division.partition import PARTITIONS, from_rule
    from fedsmoo.data.division.splitfile import load_split, read_split
    from fedsmoo.data.names import files_of
    from fedsmoo.data.sources import load
    from fedsmoo.pages.figures.partition import describe, draw
    from fedsmoo.pages.figures.rules import draw_views
    from fedsmoo.runs.origin.trust import code_files, judge_for, refuse_strange

    content = read_split(split)
    code = code_files([("dataset", content["dataset"])])
    refuse_strange(code, f"to show the split {split}", trust)
    dataset = content["dataset"]
    if data is not None and files_of(dataset) is not None:  # a split keeps the name of the file alone
        dataset, data = f"{dataset.partition(':')[0]}:{data}", None
        loaded = load(dataset)
    else:
        with judged(judge_for(code)):
            loaded = load(dataset, data, content["seed"])
    indices = load_split(split, loaded)
    folder = out or split.parent
    screen = console()
    for line in describe(indices, loaded):
        screen.print(text(line), markup=False)
    pictures = draw(indices, loaded, content, folder, split.stem, suffix)
    if content["rule"].get("name") in PARTITIONS:
        seen = folder / f"{split.stem}-seen.{suffix.lstrip('.')}"
        pictures += draw_views(from_rule(content["rule"]), loaded, seen, len(indices), content["seed"])
    for path in pictures:
        screen.print(text(f"picture: {path}"), soft_wrap=True, markup=False)
    own = [] if dataset == Config.dataset else ["--dataset", dataset]
    next_step("fedsmoo run --split", split, *own, *([] if data is None else ["--data", data]))


@app.command("rules", cls=TorchCommand, help="Draw who would hold what of a data set by every partition there is.")
def rules(
    dataset: Set,
    out: Annotated[Path, typer.Option(help="The picture to write: .png, .pdf or .svg.")],
    clients: Annotated[int, typer.Option(help="Clients in all.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the divisions.")] = 0,
    data: Where = None,
) -> None:
    from fedsmoo.data.sources import load
    from fedsmoo.pages.figures.rules import draw_rules

    console().print(text(f"picture: {draw_rules(load(dataset, data, seed), out, clients, seed)}"), soft_wrap=True)
    next_step("fedsmoo list partitions")


def with_sets(settings: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """Return the settings of a division with the options of its partition and data set."""
    from fedsmoo.runs.settings.merge import add_options

    for word in sets:
        key, value = split_word(word)
        made = add_options(settings, {} if key in FIELDS else {key: value}, parse_word)
        if made.keys() - settings.keys() - {"partition_options", "dataset_options"} or key in FIELDS:
            raise FedsmooError(f"--set {key}: of a division, --set takes options of its partition and data set alone")
        settings = made
    return settings


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise FedsmooError(f"{path} already exists: choose another --out, nothing was overwritten")
