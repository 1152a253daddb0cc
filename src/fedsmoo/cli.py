"""The command line: gathers the commands, and turns errors into one line.

Nothing here or in ``commands/`` imports PyTorch, or what needs it, before a command is carried out: ``--help`` and
completion answer at once.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer

from fedsmoo.commands import analyse as analyse_commands
from fedsmoo.commands import data as data_commands
from fedsmoo.commands import deploy as deploy_commands
from fedsmoo.commands.command import Group, ReadingCommand, TorchCommand
from fedsmoo.commands.compare import compare
from fedsmoo.commands.console import warnings_in_a_line, write_any_letter
from fedsmoo.commands.demo import demo
from fedsmoo.commands.describe import list_things, show
from fedsmoo.commands.doctor import doctor
from fedsmoo.commands.export import export
from fedsmoo.commands.figure import figure
from fedsmoo.commands.report import report
from fedsmoo.commands.run import resume, run
from fedsmoo.commands.runs import runs, show_ledger
from fedsmoo.commands.screen import wrap_words
from fedsmoo.commands.serve import serve
from fedsmoo.commands.sweep import sweep
from fedsmoo.commands.table import app as results_app
from fedsmoo.commands.table import table
from fedsmoo.commands.verify import verify
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.untrusted import lines, text
from fedsmoo.engines.distributed.launcher import launched
from fedsmoo.runs.origin.typed import typed
from fedsmoo.version import __version__

app = typer.Typer(
    name="fedsmoo",
    cls=Group,
    help="Federated optimisation: FedSMOO, its baselines and rivals, on heterogeneous clients.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[str, tuple[Callable[..., Any], str]] = {
    "demo": (demo, "See it work, in a minute: five methods on digits, pictures, a page."),
    "run": (run, "Train one method and keep the run in a folder."),
    "resume": (resume, "Go on with a run that was stopped or killed."),
    "sweep": (sweep, "Carry out a grid of runs: skip what is done, resume what is not."),
    "verify": (verify, "Check every checksum of runs and federations, and say what can be used."),
    "runs": (runs, "Which runs there are, by an SQL condition."),
    "ledger": (show_ledger, "What runs sent: vectors, bytes, the paper's count beside."),
    "table": (table, "The paper's tables, ours beside the printed numbers."),
    "compare": (compare, "Train several methods on the same task and print a table."),
    "report": (report, "Show run folders as one page that opens offline."),
    "serve": (serve, "Show the report page live while runs go on."),
    "figure": (figure, "Draw a figure of some runs for a paper."),
    "export": (export, "A finished model for others: safetensors and a model card."),
    "doctor": (doctor, "What this machine has for runs, what is slow and why, what to type."),
    "list": (list_things, "What there is: algorithms, models, datasets, partitions, engines."),
    "show": (show, "A method's box, its vectors and where each lives."),
}
OF_THE_SYSTEM = {  # errors that any command may meet, and what to do
    errno.ENAMETOOLONG: "no file can have so long a name; give a shorter one",
    errno.ENOSPC: "no space is left on the device: what was to be written is not there whole",
}
READING = ("verify", "runs", "ledger", "report", "serve", "figure", "export", "doctor", "list")
for _name, (_function, _help) in COMMANDS.items():
    app.command(_name, help=_help, cls=ReadingCommand if _name in READING else TorchCommand)(_function)
app.add_typer(data_commands.app, name="data")
app.add_typer(deploy_commands.app, name="deploy")
app.add_typer(results_app, name="results")
app.add_typer(analyse_commands.app, name="analyse")


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(f"fedsmoo {__version__}")
        raise typer.Exit


def refuse_empty(arguments: list[str]) -> None:
    """Refuse options that are given as nothing: an empty path would be the folder that one happens to be in."""
    before = "an argument"
    for word in arguments:
        name, equals, value = word.partition("=")
        if not word.strip() or (name.startswith("--") and equals and not value.strip()):
            raise FedsmooError(f"{name if equals else before} is empty: give it a value, or leave it out")
        before = word


def end_rank(code: int) -> None:
    """End this process at once, with an exit code, if a launcher made it one of several."""
    if launched():
        from fedsmoo.engines.distributed.ranks import exit_rank

        exit_rank(code)


@cache
def tree() -> Any:
    """Build all commands from their functions: once, however often a process calls them."""
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; errors meant for people are one line and a non-zero exit."""
    try:
        words = sys.argv[1:] if arguments is None else arguments
        if "_FEDSMOO_COMPLETE" in os.environ:  # a shell reads a line for each suggestion: none may be broken
            os.environ["COLUMNS"] = "10000"
        write_any_letter()
        refuse_empty(words)
        with typed(words), warnings_in_a_line():
            tree()(arguments)
    except FedsmooError as e:
        sys.stderr.write(f"{wrap_words(f'fedsmoo: {lines(e)}')}\n")
        end_rank(2)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as e:
        if e.errno not in OF_THE_SYSTEM:
            raise
        where = "" if e.filename is None else f"{text(e.filename, 100)}: "
        sys.stderr.write(f"fedsmoo: {where}{OF_THE_SYSTEM[e.errno]}\n")
        end_rank(2)
        sys.exit(2)
    except MemoryError as e:
        sys.stderr.write(
            f"fedsmoo: memory ran out: {lines(e) or 'there is no more'}; ask for less, such as fewer clients\n"
        )
        end_rank(2)
        sys.exit(2)
    except KeyboardInterrupt:  # between commands' own answers to it: nothing has begun
        sys.exit(130)
    except SystemExit as e:
        end_rank(e.code if isinstance(e.code, int) else int(bool(e.code)))
        raise


__all__ = ["app", "main"]
