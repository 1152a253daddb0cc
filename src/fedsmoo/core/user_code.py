"""Load and call what users bring in files of their own: ``path/to/file.py:Name`` for anything that a setting names."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from fedsmoo.core.blame import Place, in_brief, is_users, path_in_package, place_of, stack_of
from fedsmoo.core.errors import FedsmooError, argument_names, unknown

HOW = "path/to/file.py:Name"


def is_in_file(spec: str) -> bool:
    """Return whether a setting names something in a user's file, not something of ours.

    >>> is_in_file("mine.py:Method"), is_in_file("fedsmoo")
    (True, False)
    """
    return ":" in spec


def file_of(spec: str) -> Path | None:
    """Return the file in ``path/to/file.py:Name``; ``None`` for a name of ours."""
    return Path(spec.rpartition(":")[0]) if is_in_file(spec) else None


def short_name(spec: str) -> str:
    """Return a name for folders and tables.

    >>> short_name("path/to/mine.py:Method"), short_name("fedsmoo")
    ('mine.py-Method', 'fedsmoo')
    """
    return Path(spec).name.replace(":", "-") if is_in_file(spec) else spec


def user_object(spec: str, kind: str) -> Any:
    """Import the file in ``path/to/file.py:Name`` and return what ``Name`` is there; refuse missing files and names."""
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not os.path.isfile(path):  # false also for a name too long for a file
        raise FedsmooError(f"{kind} {spec!r}: there is no file {file!r}")
    module = import_file(path, kind)
    if not hasattr(module, name):
        raise unknown(f"{kind} in {file}", name, [n for n in vars(module) if not n.startswith("_")])
    return getattr(module, name)


_imported: dict[tuple[Path, str], ModuleType] = {}
Judge = Callable[[Path, str], None]  # refuses a file, of this SHA-256, by raising a ``FedsmooError``
_judges: ContextVar[tuple[Judge, ...]] = ContextVar("judges", default=())


@contextmanager
def judged(judge: Judge) -> Iterator[None]:
    """Within this, ask ``judge`` before any file is imported, with the SHA-256 of the very bytes that would be run."""
    token = _judges.set((*_judges.get(), judge))
    try:
        yield
    finally:
        _judges.reset(token)


def refuse_all(path: Path, sha256: str) -> None:
    """Refuse every file: whoever only reads has no need for code."""
    raise FedsmooError(f"{path} is code, which is not run to read something (SHA-256 {sha256})")


def import_file(path: Path, kind: str) -> ModuleType:
    """Import a user's file as a module; the same module while its content stays, so that runs can share a batch."""
    try:
        source = path.read_bytes()
    except OSError as e:
        raise FedsmooError(f"{kind}: {path} cannot be read: {e.strerror}") from e
    content = hashlib.sha256(source).hexdigest()
    for judge in _judges.get():
        judge(path, content)
    key = (path.absolute(), content)
    if key in _imported:
        return _imported[key]
    name = f"fedsmoo_user_{path.stem}_{content[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FedsmooError(f"{kind}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up here
    try:
        # Not by the loader: the compiled copy that it keeps is taken for a file edited within the same second.
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as e:  # a script that reads the command line, or ends the program
        del sys.modules[name]
        place = place_of(stack_of(e))
        line = f" (line {place.line})" if place is not None else ""
        raise FedsmooError(f"{kind}: {path} cannot be imported: {in_brief(e)}{line}") from e
    _imported[key] = module
    return module


def call(function: Callable[..., Any], what: str, *args: Any, **options: Any) -> Any:
    """Call a user's function; turn an error inside it into a ``FedsmooError`` that names the user's file and line."""
    try:
        return function(*args, **options)
    except FedsmooError:
        raise
    except (Exception, SystemExit) as e:
        place = place_inside(e)
        raise FedsmooError(f"{what}: {place}: {in_brief(e)}" if place else f"{what}: {in_brief(e)}") from e


def place_inside(error: BaseException) -> Place | None:
    """Return the deepest line of the user's that an error passed below :func:`call`, if it is in a user's file."""
    for frame, line in stack_of(error):
        file = frame.f_code.co_filename
        if path_in_package(file) == "core/user_code.py":
            return None
        if is_users(file, frame.f_code.co_name):
            return Place(file, line, frame.f_code.co_name)
    return None


def options_of(function: Callable[..., Any], given: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the options of a function or class and their defaults: its parameters but those that are always given.

    Those that it names, where it takes any others (``**options``), too; ``None`` where it does not say, as functions
    written in C.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    first = 0 if isinstance(function, type) else len(given)
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {p.name: p.default for p in [*placed[first:], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]}


def with_options(
    thing: Any, what: str, given: Sequence[str], options: Mapping[str, Any], method: str = "__call__"
) -> Callable[..., Any]:
    """Bind a user's options and return a function of the ``given`` arguments; refuse one that cannot be called so.

    ``thing`` is such a function, or a class whose objects, made from the options, are called or have the ``method``.
    """
    if not callable(thing):
        raise FedsmooError(f"{what} is a {type(thing).__name__}, but must be a function of ({', '.join(given)})")
    refuse_options(thing, what, given, options)
    if isinstance(thing, type):
        function = getattr(call(thing, what, **options), method, None)
        if function is None:
            raise FedsmooError(f"{what}: its objects have no method {method}({', '.join(given)})")
    else:
        function = functools.partial(thing, **options) if options else thing
    refuse_other_arguments(function, what, given)
    return function


def refuse_options(thing: Callable[..., Any], what: str, given: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse options that a user's function or class does not have."""
    known = options_of(thing, given)
    if known is None:
        return
    takes_any = argument_names(thing)[1]
    for name in options:
        if not known and not takes_any:
            raise FedsmooError(f"{what} has no options: leave out {', '.join(options)}")
        if name not in known and not takes_any:
            raise unknown(f"option of {what}", name, known)
        if isinstance(known.get(name), bool) and isinstance(options[name], str):  # "no" would be true
            raise FedsmooError(f"{name} of {what} is {options[name]!r}, but must be true or false, without quotes")


def refuse_other_arguments(function: Callable[..., Any], what: str, given: Sequence[str]) -> None:
    """Refuse a function that cannot be called with the ``given`` arguments, in their order."""
    try:
        inspect.signature(function).bind(*given)
    except ValueError:  # written in C, and silent about it
        return
    except TypeError as e:
        raise FedsmooError(f"{what} must be a function of ({', '.join(given)}): {e}") from None
