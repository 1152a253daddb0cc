"""Plain values as TOML; and TOML that would keep a parser busy for hours."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError, brief

DEEPEST = 200  # dots that follow each other in a line
BARE = re.compile(r"[A-Za-z0-9_-]+")  # names that are keys of TOML as they are


def to_toml(values: dict[str, Any]) -> str:
    """Write plain settings as TOML that a config file's reader reads back; a setting that is none is left out.

    Options are values of TOML: text, numbers, true or false, and lists and tables of them; others are refused.
    """
    plain = [f"{key(k)} = {literal(v, k)}" for k, v in values.items() if v is not None and not isinstance(v, dict)]
    tables = [
        f"\n[{key(k)}]\n" + "\n".join(f"{key(n, k)} = {literal(x, f'{k}: {n}')}" for n, x in v.items())
        for k, v in values.items()
        if isinstance(v, dict) and v
    ]
    return "\n".join(plain + tables) + "\n"


def key(name: Any, where: str = "a setting") -> str:
    """Return a name as a key of TOML, quoted where it has to be."""
    if not isinstance(name, str):
        raise FedsmooError(f"{where} has the name {brief(name)}, which a TOML file cannot hold: names are text")
    return name if BARE.fullmatch(name) else quoted(name, where)


def literal(v: Any, where: str) -> str:
    """Return a value as TOML; ``where`` names it to a person."""
    if isinstance(v, np.generic):
        v = v.item()
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, int | float):
        return repr(int(v) if isinstance(v, int) else float(v))  # of a subclass, the number alone
    if isinstance(v, str):
        return quoted(v, where)
    if isinstance(v, list | tuple):
        return "[" + ", ".join(literal(x, where) for x in v) + "]"
    if isinstance(v, dict):
        return "{" + ", ".join(f"{key(k, where)} = {literal(x, where)}" for k, x in v.items()) + "}"
    what = "none there: leave it out" if v is None else brief(v)
    raise FedsmooError(
        f"{where}: a TOML file cannot hold {what}; options are text, numbers, true or false, and lists and tables of "
        "them"
    )


def quoted(text: str, where: str) -> str:
    """Text as TOML: JSON has the same escapes, but for the one control character that it lets pass."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise FedsmooError(f"{where} is {text!a}, which is not valid text: it cannot be kept in a file") from e
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def refuse_deep_keys(content: bytes, where: str) -> None:
    """Refuse keys such as ``a.b.c.d``, with hundreds of dots: the time to parse one grows with the square of them."""
    run = 0
    for part in content.split(b"."):
        run = 1 if b"\n" in part or b"," in part else run + 1
        if run > DEEPEST:
            raise FedsmooError(f"the config file {where} is not valid TOML: it is nested too deeply")
