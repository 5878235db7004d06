"""Which column of a file is which: names, other names, and what a file must have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import pyarrow as pa

from earshot.errors import InvalidFile, InvalidParameter
from earshot.files.rejects import OnError
from earshot.model.arrays import Space
from earshot.model.schemas import (
    BOX_FIELDS,
    CIRCLE_FIELDS,
    COLUMN_TYPES,
    KEYWORDS,
    POINT_FIELDS,
    TIME,
    TYPES_IN_WORDS,
    Content,
    fields_of,
    id_kind,
    is_number,
    is_text,
)

_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)


PlaceKind = Literal["point", "box"]
"""Which place counts where a message has both."""


class Layout(NamedTuple):
    """What a file is read as, and under which names its columns may appear."""

    content: Content
    names: dict[str, tuple[str, ...]]  # canonical field -> names in the file, best first
    source: str
    on_error: OnError
    space: Space = "lonlat"
    place: PlaceKind | None = None  # None: a message with a point and a box is refused


def make_layout(
    content: Content,
    columns: Mapping[str, str] | None,
    source: str,
    on_error: OnError,
    space: Space = "lonlat",
    place: PlaceKind | None = None,
) -> Layout:
    """Return the layout for a file whose columns may be renamed by ``{canonical: in the file}``."""
    columns = columns or {}
    if place not in (None, *get_args(PlaceKind)):
        raise InvalidParameter(f"place is {place!r}; expected 'point' or 'box'")
    names = {
        field.name: (columns[field.name],)
        if field.name in columns
        else (field.name, *field.aliases)
        for field in fields_of(content, in_files=True)
    }
    unknown = sorted(set(columns) - set(names))
    if unknown:
        raise InvalidParameter(
            f"unknown field '{unknown[0]}' among the names of columns; the fields of {content} "
            f"are {', '.join(names)}"
        )
    return Layout(content, names, source, on_error, space, place)


def choose_columns(layout: Layout, present: Collection[str]) -> dict[str, str]:
    """Return the column of the file that holds each canonical field, of those there are.

    A column that was named for a field has to be there, where files have columns; no name at all
    says that no column is the field's.
    """
    chosen = {}
    for field, names in layout.names.items():
        found = [name for name in names if name in present]
        if not found and field not in names and names != ("",):
            raise InvalidFile(
                f"{layout.source}: no column '{names[0]}', which is named for '{field}'; its "
                f"columns are {_quoted(sorted(present))}"
            )
        if not found:
            continue
        if found[0] != names[0] and len(found) > 1:
            raise InvalidFile(
                f"{layout.source}: columns {_quoted(found)} could each be '{field}'; choose one "
                f"with {_renaming(layout, field, found[0])}"
            )
        chosen[field] = found[0]
    check_columns(layout, chosen, present)
    return chosen


def present_fields(layout: Layout, present: Collection[str]) -> list[str]:
    """Return the fields that have a column of theirs in the file, whichever."""
    return [
        field for field, names in layout.names.items() if any(name in present for name in names)
    ]


def check_columns(layout: Layout, chosen: Collection[str], present: Collection[str]) -> None:
    """Raise InvalidFile when the fields found cannot make up a subscription or message."""

    def lacking(expected: str) -> InvalidFile:
        return InvalidFile(
            f"{layout.source}: no {expected}; its columns are {_quoted(sorted(present))}, "
            f"expected for {layout.content}: {', '.join(layout.names)}; rename with "
            f"{_renaming(layout)}"
        )

    for field in ("id", "op"):
        if field in layout.names and field not in chosen:
            raise lacking(f"column '{layout.names[field][0]}'")
    if layout.content == "positions":
        for field in POINT_FIELDS:
            if field not in chosen:
                raise lacking(f"column '{field}'")
        return
    groups: list[tuple[str, ...]] = [BOX_FIELDS, POINT_FIELDS]
    if layout.content != "messages" and not ("radius" in chosen and "geometry" in chosen):
        groups[1] = CIRCLE_FIELDS
    complete = "geometry" in chosen
    for group in groups:
        missing = [field for field in group if field not in chosen]
        if not missing:
            complete = True
        elif len(missing) < len(group) and not (
            layout.content != "messages" and group == CIRCLE_FIELDS and missing == ["radius"]
        ):
            first = next(field for field in group if field in chosen)
            raise lacking(f"column '{missing[0]}' beside '{first}'")
    if layout.content == "messages":
        if not {"text", "keywords"} & set(chosen):
            raise lacking("column 'text' or 'keywords'")
        if not complete:
            raise lacking(
                "place (columns 'x' and 'y', or 'min_x', 'min_y', 'max_x', 'max_y', or 'geometry')"
            )
    elif (
        layout.content == "subscriptions"
        and not complete
        and not {"keywords", "expression"} & set(chosen)
    ):
        raise lacking("column 'keywords' or 'expression' and no region column")


def _renaming(layout: Layout, field: str = "FIELD", column: str = "COLUMN") -> str:
    """Say how columns are renamed: on the command line, and in Python and pipelines."""
    return f"--{layout.content[:-1]}-column {field}={column} (columns={{'{field}': '{column}'}})"


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"


def check_column_type(layout: Layout, field: str, column: str, data_type: pa.DataType) -> None:
    """Raise InvalidFile when a typed column cannot hold the field."""
    value_type = data_type.value_type if pa.types.is_dictionary(data_type) else data_type
    wanted = COLUMN_TYPES.get(field)
    if pa.types.is_null(value_type):
        return
    if wanted is None:
        good = id_kind(data_type) is not None
    elif is_number(wanted):
        good = is_number(value_type)
    elif wanted == TIME:
        good = is_text(value_type) or (
            pa.types.is_timestamp(value_type) and value_type.tz is not None
        )
    elif wanted == pa.bool_():
        good = is_text(value_type) or pa.types.is_boolean(value_type)
    elif wanted == KEYWORDS:
        items = value_type.value_type if isinstance(value_type, _LISTS) else value_type
        good = is_text(items) or (pa.types.is_dictionary(items) and is_text(items.value_type))
    else:
        is_binary = value_type in (pa.binary(), pa.large_binary())
        good = is_text(value_type) or (wanted == pa.binary() and is_binary)
    if not good:
        raise InvalidFile(
            f"{layout.source}: column '{column}' is of type {data_type}; "
            f"expected {TYPES_IN_WORDS[wanted]}"
        )
