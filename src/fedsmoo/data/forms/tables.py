"""Tables in files, ``.csv`` and ``.parquet``: one column is learnt from the others."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, FedsmooWarning, first_line, unknown
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.files.tree import LARGEST
from fedsmoo.data.forms.columns import CLIENTS
from fedsmoo.data.forms.read import read_data

SUFFIXES = (".csv", ".parquet")
UNNAMED = "Unnamed: 0"  # what pandas calls a column without a name, as it writes the numbers of rows
TABLE_OPTIONS = ("x", "y", "client", "test", "target")


def table(path: str, options: Mapping[str, Any]) -> Dataset:
    """Return the table in a file, or those in ``train.csv`` and ``test.csv`` (or ``.parquet``) of a folder.

    Options are those of :func:`fedsmoo.read_data`; names of columns are text, as the file has them.
    """
    what, place = f"table {path}", Path(path).expanduser()
    for name in options:
        if name not in TABLE_OPTIONS:
            raise unknown(f"option of {what}", name, TABLE_OPTIONS)
    named = {n: str(v) if n in ("x", "y", "client") and v is not None else v for n, v in options.items()}
    client = named.get("client")
    who = (client,) if isinstance(client, str) else CLIENTS
    value: Any = frame(place, what, who)
    if place.is_dir():
        train, test = (in_folder(place, part, what) for part in ("train", "test"))
        if train is None:
            raise FedsmooError(f"{what}: no train.csv or train.parquet there")
        value = frame(train, what, who) if test is None else (frame(train, what, who), frame(test, what, who))
    return read_data(value, f"table:{place.name}", what, **named)


def hint_of_table(path: Path) -> str:
    """Return how a table is named, to be added to an error about a file that was taken for something else."""
    return f"; a table is named by --dataset 'table:{path}'" if path.suffix.lower() in SUFFIXES else ""


def in_folder(folder: Path, part: str, what: str) -> Path | None:
    """Return the file of a part in a folder."""
    found = [folder / f"{part}{suffix}" for suffix in SUFFIXES if (folder / f"{part}{suffix}").is_file()]
    if len(found) > 1:
        raise FedsmooError(f"{what}: both {found[0].name} and {found[1].name}: leave one")
    return found[0] if found else None


def frame(path: Path, what: str, who: tuple[str, ...] = ()) -> Any:
    """Read a file; ``None`` for a folder. Whatever is wrong with it is one line; ``who`` may name the client."""
    if path.is_dir():
        return None
    if path.suffix.lower() not in SUFFIXES:
        raise FedsmooError(f"{what}: must be a .csv or .parquet file, or a folder with train and test files of those")
    if not path.is_file():
        raise FedsmooError(f"{what}: no such file")
    if path.stat().st_size > LARGEST:
        raise FedsmooError(f"{what}: {path.stat().st_size} bytes, more than is read at once ({LARGEST})")
    import pandas as pd

    try:
        found = read_csv(path, who, what) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except FedsmooError:
        raise
    except ImportError:
        raise FedsmooError(f"{what}: reading .parquet needs pyarrow: pip install pyarrow, or save it as .csv") from None
    except pd.errors.ParserWarning:
        raise FedsmooError(
            f"{what}: rows have more fields than the first line has names: name every column, or take the last comma "
            "off the rows"
        ) from None
    except UnicodeDecodeError:
        raise FedsmooError(f"{what} is no text in UTF-8: save it in that encoding, to_csv(encoding='utf-8')") from None
    except Exception as e:  # parsers raise many kinds for damaged files
        raise FedsmooError(f"{what} cannot be read: {first_line(e)}") from None
    if len(found) > 1 and UNNAMED in found and found[UNNAMED].tolist() == list(range(len(found))):
        warnings.warn(
            f"{what}: the first column of {path.name} has no name and holds the numbers of the rows, which a model can "
            "learn from: save it by to_csv(index=False), or name the columns to learn from, x=NAME,NAME",
            FedsmooWarning,
            stacklevel=2,
        )
    return found


def read_csv(path: Path, who: tuple[str, ...], what: str) -> Any:
    """Read a file whose columns all have names: pandas takes a first one without for names of rows, and moves the rest.

    Raises:
        pandas.errors.ParserWarning: if rows have more fields than the first line.
        FedsmooError: if clients of different names are read as one number, two columns have one name, or another sign
            than a comma is between columns.
    """
    import pandas as pd

    first = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)  # NA is a name as any other
    refuse_first_line(first.iloc[0].tolist(), what)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        found = pd.read_csv(path, index_col=False)
    for name in who:
        if name in found and pd.api.types.is_numeric_dtype(found[name]):
            text = pd.read_csv(path, index_col=False, usecols=[name], dtype=str)[name].str.strip()
            refuse_merged(text, found[name], f"{what}: column {name!r} of {path.name}")
    return found


def refuse_first_line(names: list[str], what: str) -> None:
    """Refuse names of columns that pandas would take for one name, or give others; those that are missing are none."""
    if len(names) == 1:
        for sign, called in (("\t", "a tab"), (";", "';'"), ("|", "'|'")):
            if sign in names[0]:
                raise FedsmooError(f"{what}: between columns is {called}, not a comma: save it by to_csv(sep=',')")
    twice = next((n for n in names if n and names.count(n) > 1), None)
    if twice is not None:
        raise FedsmooError(f"{what}: two columns are called {twice!r}: rename one")


def refuse_merged(text: Any, numbers: Any, where: str) -> None:
    """Refuse names of clients that are one number: ``1`` and ``01``, or whole numbers too large for a float."""
    names = text.groupby(numbers).agg(lambda same: sorted(set(same)))
    for same in names[names.map(len) > 1]:
        raise FedsmooError(
            f"{where}: clients {same[0]} and {same[1]} are the same number: write each client in one way, or put a "
            "letter before"
        )
