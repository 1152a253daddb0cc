"""Data sets by name: embedded ones, the known image sets, anyone's own images, and text.

A ``path`` may be a folder of the official files, a folder of class folders, an ``.npz`` or an official archive. Without
one the folder ``$FEDSMOO_DATA`` or the user's cache is searched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.core.user_code import user_object
from fedsmoo.data.catalog import SPECS
from fedsmoo.data.check import check, check_own_classes
from fedsmoo.data.dataset import Dataset
from fedsmoo.data.digits import digits
from fedsmoo.data.files.download import fetch_dataset
from fedsmoo.data.files.images import image_set
from fedsmoo.data.forms.leaf import LeafOptions, leaf
from fedsmoo.data.forms.published.federated import FEDERATED, federated
from fedsmoo.data.forms.tables import TABLE_OPTIONS, table
from fedsmoo.data.names import LEAF, SYNTHETIC, TABLE, TEXT, is_drawn
from fedsmoo.data.own import KIND, OWN, OWN_NAME, is_own, own_data, takes_seed
from fedsmoo.data.synthetic import synthetic
from fedsmoo.data.text import text

__all__ = ["MADE", "SOURCES", "depends_on_seed", "fetch_dataset", "load"]


@dataclass(frozen=True)
class Source:
    """A data set that is made, not read from the files of images that ``path`` points to."""

    about: str
    names: re.Pattern[str]  # which names are its own
    make: Callable[[re.Match[str], int, Mapping[str, Any]], Dataset]  # from the name, a seed and options
    no_path: str  # what to say of a path beside the name
    options: Mapping[str, Any] = field(default_factory=dict)  # and their defaults


MADE: dict[str, Source] = {
    "digits": Source(
        "1,797 grey images of 8x8 from scikit-learn; needs no download",
        re.compile("digits"),
        lambda name, seed, options: digits(),
        "is made by the package and takes no path",
    ),
    "synthetic(alpha,beta)": Source(
        "logistic data with 30 natural clients that differ in model (alpha) and features (beta)",
        SYNTHETIC,
        lambda name, seed, options: _synthetic(name, seed),
        "is made by the package and takes no path",
    ),
    "text:PATH": Source(
        "next characters of a text file, one client per speaker or per chunk",
        TEXT,
        lambda name, seed, options: text(name[1]),
        "says itself where the text is",
    ),
    "leaf:PATH": Source(
        "LEAF's FEMNIST, Shakespeare or Sent140: train/*.json and test/*.json, one client per user",
        LEAF,
        lambda name, seed, options: leaf(name[1], options),
        "says itself where the files are",
        asdict(LeafOptions()),
    ),
    "table:PATH": Source(
        "a .csv or .parquet of numbers, of which the column y is learnt, or a folder with train.csv and test.csv",
        TABLE,
        lambda name, seed, options: table(name[1], options),
        "says itself where the table is",
        dict.fromkeys(TABLE_OPTIONS),
    ),
    OWN: Source(
        "a function of yours, of (seed) or of nothing: a Dataset, or x_train, y_train, x_test, y_test",
        OWN_NAME,
        lambda name, seed, options: own_data(name[0], seed, options),
        "is made by the function in the file and takes no path",
    ),
}

# What there is, in a line each; the function of a user's own is no name.
SOURCES: dict[str, str] = {
    **{name: source.about for name, source in MADE.items() if name != OWN},
    **{name: spec.about for name, spec in SPECS.items()},
    **{name: published.about for name, published in FEDERATED.items()},
}


def find_source(name: str) -> tuple[Source, re.Match[str]] | None:
    """Return the source that makes the data set of a name; ``None`` if it is read from files of images."""
    found = ((source, source.names.fullmatch(name)) for source in MADE.values())
    return next(((source, match) for source, match in found if match), None)


def load(name: str, path: str | Path | None = None, seed: int = 0, options: Mapping[str, Any] | None = None) -> Dataset:
    """Return the data set with a name, from a path or from the cache; refuse what is not there or not sound.

    Args:
        name: one of ``SOURCES``, or ``path/to/file.py:function``; with a path, any other name for images of your own.
        path: where the files are; see above.
        seed: for data that is drawn (synthetic, or by a function of yours) only.
        options: of a function of yours, or of a form of files (``leaf:``, ``table:``).

    >>> load("digits").x_train.shape
    torch.Size([1438, 1, 8, 8])
    """
    if not isinstance(name, str):
        raise FedsmooError(f"the name of a data set is {name!r}, but must be text, such as 'digits'")
    if name in FEDERATED:
        return check(federated(name, path, options or {}))
    found = find_source(name)
    if options and (found is None or (found[0] is not MADE[OWN] and not found[0].options)):
        raise FedsmooError(f"data set {name!r} has no options: leave out {', '.join(options)}")
    if found is None:
        data = image_set(name, path)
        if data is None:
            raise unknown("data set", name, [*SOURCES, OWN, "or any name with a path to images"])
        check(data)
        if name not in SPECS:
            check_own_classes(data)
        return data
    source, match = found
    if path is not None:
        raise FedsmooError(f"data set {name} {source.no_path}; leave out {path}")
    return check(source.make(match, seed, options or {}))


def form_options(name: str) -> Mapping[str, Any]:
    """Return the options, with their defaults, that data in files has by the form that its name says."""
    if name in FEDERATED:
        return FEDERATED[name].options
    found = find_source(name)
    return {} if found is None else found[0].options


def depends_on_seed(name: str) -> bool:
    """Return whether another seed may be another data set: a function of the user's decides by its arguments."""
    return is_drawn(name) or (is_own(name) and takes_seed(user_object(name, KIND)))


def _synthetic(name: re.Match[str], seed: int) -> Dataset:
    alpha, beta = name.groups()
    if alpha is None or beta is None:
        return synthetic(seed=seed)
    try:
        return synthetic(float(alpha), float(beta), seed=seed)
    except ValueError:
        raise FedsmooError(f"data set {name[0]!r}: alpha and beta must be numbers, as in synthetic(0.5,0.5)") from None
