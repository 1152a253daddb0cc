"""``fedsmoo doctor``: what this machine has for runs, what is slow and why, and what to type next."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.console import console, counted, print_hanging


def doctor(
    runs: Annotated[Path, typer.Option(help="The folder that runs would be written to.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON, facts included.")] = False,
) -> None:
    from fedsmoo.doctor.findings import judge
    from fedsmoo.doctor.machine import look

    machine = look(runs)
    findings = judge(machine)
    if as_json:
        content = {"machine": dataclasses.asdict(machine), "findings": [dataclasses.asdict(f) for f in findings]}
        typer.echo(json.dumps(content, default=str, indent=2))
        return
    out = console()
    for f in findings:
        mark = "[green]ok[/green]  " if f.well else "[yellow]warn[/yellow]"
        print_hanging(out, f"{mark} [bold]{f.about:<9}[/bold] ", f.says)
        if f.next:
            out.print(f"{'':<15}{f.next}", style="dim", markup=False, soft_wrap=True)
    wrong = sum(not f.well for f in findings)
    word = "all is well" if not wrong else counted(wrong, "thing") + " could be better; runs work"
    out.print(f"{word}: fedsmoo demo", markup=False)
