"""pandas: a table of numbers with a column to be learnt; its package is used through the table, not imported."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError, FedsmooWarning, brief, unknown
from fedsmoo.data.forms.columns import NUMBER, OTHER, TEXT, choose
from fedsmoo.data.forms.options import Options
from fedsmoo.data.forms.parts import Part

REMEDY = "make numbers of it, pandas.get_dummies(frame, columns=['{}'])"


def is_pandas(value: Any) -> bool:
    """Return whether a value is a table or a column of pandas."""
    return type(value).__module__.partition(".")[0] == "pandas" and type(value).__name__ in ("DataFrame", "Series")


def is_table(value: Any) -> bool:
    """Return whether a value is a table of pandas."""
    return is_pandas(value) and type(value).__name__ == "DataFrame"


def frame_part(frame: Any, options: Options, what: str) -> Part:
    """Return a DataFrame as a part: one column is learnt from the others."""
    if type(frame).__name__ == "Series":
        raise FedsmooError(f"{what}: a Series is one column: give a DataFrame with the column to be learnt, y='NAME'")
    if not len(frame):
        return Part(0, what)
    names = list(frame.columns)
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise FedsmooError(f"{what}: two columns are called {str(twice)!r}: rename one")
    chosen = choose({n: kind_of_column(frame[n]) for n in names}, options, what, lambda n: remedy(frame[n], n))
    for name in (*chosen.x, *chosen.y, *(() if chosen.client is None else (chosen.client,))):
        missing = np.flatnonzero(frame[name].isna())
        if len(missing):
            count = f"{len(missing)} missing value{'s' if len(missing) > 1 else ''}, the first of sample {missing[0]}"
            raise FedsmooError(f"{what}: column {str(name)!r} has {count}: fill them (fillna) or drop rows (dropna)")
    found = [np.asarray(frame[n]) for n in chosen.x]
    kind = np.result_type(*(f.dtype for f in found))
    x = np.stack(found, 1).astype(kind if kind.kind == "f" else np.float64)
    ys = [target_values(frame[n]) for n in chosen.y]
    clients = None if chosen.client is None else (lambda: client_names(frame[chosen.client]))
    y = ys[0] if len(ys) == 1 else np.stack(ys, 1)
    return Part(len(frame), what, x, y, columns=chosen.named, clients=clients)


def of_columns(frame: Any, names: Sequence[Any], what: str) -> Any:
    """Return some columns of a table, in this order."""
    for name in names:
        if name not in frame.columns:
            raise unknown(f"column of {what}", name, map(str, frame.columns))
    return frame[list(names)]


def warn_other_order(x: Any, y: Any, what: str) -> None:
    """Say that rows of samples and of labels have the same names in another order: they go together by their place."""
    if not is_pandas(x) or not is_pandas(y) or len(x) != len(y) or x.index.equals(y.index):
        return
    if x.index.is_unique and y.index.isin(x.index).all() and y.index.is_unique:
        say = (
            f"{what}: the rows of x and y have the same names (index) in another order, and go together by their place"
        )
        do = "if they belong together by name, give y.loc[x.index]; if by place, reset_index(drop=True) of both"
        warnings.warn(f"{say}: {do}", FedsmooWarning, stacklevel=2)


def remedy(column: Any, name: Any) -> str:
    """Return what to do about a column that holds text: of categories, or of numbers and a few words beside them."""
    there = np.flatnonzero(column.notna())
    words = [i for i in there if not is_number(column.iloc[i])]
    if not 0 < len(words) < len(there) / 2:
        return REMEDY.format(name)
    first = brief(column.iloc[words[0]])
    return f"{len(words)} of {len(there)} values are no numbers, the first is {first} of sample {words[0]}: repair them"


def is_number(value: Any) -> bool:
    """Return whether a value is a number, or text that spells one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def kind_of_column(column: Any) -> str:
    """Return what a column holds: numbers, text (or categories), or something else such as dates."""
    kind = column.dtype.kind
    if kind in "OUST":
        return TEXT
    return NUMBER if kind in "biuf" else OTHER


def target_values(column: Any) -> np.ndarray:
    """Return what is to be learnt; categories and text are classes by their names."""
    if kind_of_column(column) == TEXT:
        return np.array([str(v) for v in column])
    return np.asarray(column)


def client_names(column: Any) -> np.ndarray:
    """Return who holds each sample: numbers as they are, anything else as text."""
    found = np.asarray(column)
    return found if found.dtype.kind in "iuf" else np.array([str(v) for v in column])
