"""HuggingFace data sets, read a few rows at a time; their package is never imported here, only used through them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.user_code import call
from fedsmoo.data.forms.columns import ARRAY, CLASS, IMAGE, NUMBER, OTHER, TEXT, Kinds, choose
from fedsmoo.data.forms.options import Options
from fedsmoo.data.forms.parts import Known, Part
from fedsmoo.data.forms.torch_sets import kind_of

REMEDY = "tokenise it first, data.map(lambda row: tokenizer(row['{}']))"
KINDS = {"Image": IMAGE, "ClassLabel": CLASS, "Sequence": ARRAY, "List": ARRAY, "LargeList": ARRAY}


def is_huggingface(value: Any) -> bool:
    """Return whether a value is a data set of the package ``datasets``, streamed or not."""
    return any(c.__module__.partition(".")[0] == "datasets" for c in type(value).__mro__) and (
        "Dataset" in type(value).__name__
    )


def huggingface_part(value: Any, options: Options, what: str) -> Part:
    """Return a HuggingFace data set as a part."""
    if any("Iterable" in c.__name__ for c in type(value).__mro__):
        raise FedsmooError(f"{what}: a streamed data set has no numbered rows: load it without streaming=True")
    count = len(value)
    if count == 0:
        return Part(0, what)
    transformed = value.format["type"] == "custom"
    first = call(value.__getitem__, f"{what}: its transform", slice(0, 1)) if transformed else {}
    kinds = {n: kind_of(v[0]) for n, v in first.items()} if transformed else kinds_of(value)
    chosen = choose(kinds, options, what, REMEDY.format)
    wanted = [*chosen.x, *chosen.y]
    images = any(kinds[n] == IMAGE for n in chosen.x)
    source = value if transformed else value.with_format(None if images else "numpy", columns=wanted)

    pixels = set() if transformed else {n for n in chosen.x if type_inside(value.features[n]) == "uint8"}

    def rows(lo: int, hi: int) -> tuple[list[Any], list[Any]]:
        found = call(source.__getitem__, f"{what}: rows {lo} to {hi - 1}", slice(lo, hi))
        xs = [as_bytes(found[n]) if n in pixels else unpacked(found[n]) for n in chosen.x]
        return xs, [unpacked(found[n]) for n in chosen.y]

    def clients() -> np.ndarray:
        return np.asarray(value.with_format(None)[chosen.client][:])

    def key(known: Known) -> str:
        return json.dumps([value._fingerprint, [str(n) for n in wanted], str(chosen.client)])

    label = value.features.get(chosen.y[0]) if len(chosen.y) == 1 and not transformed else None
    names = getattr(label, "names", None) or getattr(getattr(label, "feature", None), "names", None)
    return Part(
        count,
        what,
        rows=rows,
        key=key,
        inputs=chosen.inputs,
        features=chosen.features,
        columns=chosen.named,
        class_names=tuple(names) if names else None,
        clients=None if chosen.client is None else clients,
        fickle=transformed,
    )


def kinds_of(value: Any) -> Kinds:
    """Return what each column holds, by the types that a data set declares."""
    return {name: kind_of_feature(feature) for name, feature in value.features.items()}


def kind_of_feature(feature: Any) -> str:
    name = type(feature).__name__
    if name == "Value":
        plain = feature.dtype.startswith(("int", "uint", "float", "bool"))
        return NUMBER if plain else TEXT if feature.dtype.endswith("string") else OTHER
    if isinstance(feature, list) or name.startswith("Array"):
        return ARRAY
    inner = getattr(feature, "feature", None)
    if (
        name in ("Sequence", "List", "LargeList")
        and inner is not None
        and kind_of_feature(inner) in (TEXT, OTHER, IMAGE)
    ):
        return OTHER
    return KINDS.get(name, OTHER)


def type_inside(feature: Any) -> str | None:
    """Return the type of the numbers in a column of arrays or of lists in lists, as it is declared."""
    while not isinstance(getattr(feature, "dtype", None), str) or hasattr(feature, "feature"):
        feature = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        if feature is None:
            return None
    return str(feature.dtype)


def as_bytes(values: Any) -> Any:
    """Return images of bytes as bytes: the package has them as int64, which are tokens; lists of bytes stay as is."""
    found = unpacked(values)
    if isinstance(found, np.ndarray):
        return found.astype(np.uint8) if found.ndim > 2 else found
    return [v.astype(np.uint8) if isinstance(v, np.ndarray) and v.ndim > 1 else v for v in found]


def unpacked(values: Any) -> Any:
    """Return a column as it is, or as a list where it is an array of objects, as rows of unequal length are."""
    return list(values) if isinstance(values, np.ndarray) and values.dtype == object else values
