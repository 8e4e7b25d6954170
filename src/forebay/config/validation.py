"""Plain values to settings: each value by itself, and all faults with words of our own.

A faulty pool, model, tenant or section is left out and the rest is validated again, so that the checks
across entries see the rest of the file and its faults are shown in the same run.
"""

import difflib
from typing import Any

from msgspec import Struct
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from forebay.config.faults import Faults, Loc
from forebay.config.schema import FileSettings
from forebay.config.section import Section, section_in

# The kinds of fault that pydantic names, in words that say what to do. Its own text is not shown: it may
# repeat the value.
_TEXTS = {
    "missing": "is missing; add it",
    "string_type": "is not text; put the value in quotes",
    "int_type": "is not a whole number; write digits without quotes",
    "int_from_float": "is not a whole number; write digits without a point",
    "float_type": "is not a number; write digits without quotes, such as 30",
    "finite_number": "is not a finite number; leave the setting out for its default",
    "list_type": "is not a list; write [a, b], or one line with `- ` for each entry",
    "dict_type": "is not a mapping; write `name: value` lines, indented",
    "model_type": "is not a mapping; write `setting: value` lines, indented",
    "too_short": "is empty; give at least one entry, or leave it out if it is optional",
    "greater_than": "is too small; it must be more than {gt:g}",
    "greater_than_equal": "is too small; it must be at least {ge}",
    "less_than_equal": "is too large; it must be at most {le:.0f}",
    "literal_error": "is not one of the choices; write {expected}",
    "string_pattern_mismatch": (
        "is not a valid name; use 1 to 64 letters, digits, `.`, `_`, `@` or `-`, a letter or digit first"
    ),
}
_EMPTY = "is empty; fill it in or remove the line"


class Draft(Struct, frozen=True):
    """What can be used of a file, with the names of what cannot.

    Attributes:
        settings: valid in each value; faulty entries are left out.
        pools: names of all pools that the file writes down.
        models: names of all models that the file writes down.
        tenants: for each tenant in `settings`, its place in the file, from 0.
        sound: names of the top-level settings that have no fault.
    """

    settings: FileSettings
    pools: frozenset[str]
    models: frozenset[str]
    tenants: tuple[int, ...]
    rules: tuple[int, ...]
    sound: frozenset[str]


def validate(data: Any, faults: Faults) -> Draft | None:
    """Validate each value of a file.

    Args:
        data: as `read_yaml` returns it.
        faults: gets one fault for each value that is wrong.

    Returns:
        What can be checked further; None when the file is not a mapping.
    """
    if not isinstance(data, dict):
        faults.add((), "is not a mapping; begin with lines such as `listen: 127.0.0.1:7080` and `pools:`")
        return None
    errors = _errors_of(data)
    for error in errors:
        loc = _loc_of(error)
        if not faults.has(loc):
            faults.add(loc, _text_of(error, loc, data))
    bad = {_loc_of(error)[:2] for error in errors}
    kept, places = _without(data, bad)
    return Draft(
        settings=FileSettings.model_validate(kept),
        pools=_names_in(data, "pools"),
        models=_names_in(data, "models"),
        tenants=places.get("tenants", ()),
        rules=places.get("rules", ()),
        sound=frozenset(FileSettings.model_fields) - {str(loc[0]) for loc in bad},
    )


def _errors_of(data: dict[str, Any]) -> list[ErrorDetails]:
    try:
        FileSettings.model_validate(data)
    except ValidationError as error:
        return error.errors(include_url=False, include_input=True)
    return []


def _loc_of(error: ErrorDetails) -> Loc:
    """Return where the fault is; pydantic adds `[key]` for the key of a mapping."""
    loc = error["loc"]
    return loc[:-1] if loc[-1:] == ("[key]",) else loc


def _text_of(error: ErrorDetails, loc: Loc, data: Any) -> str:
    kind, details = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(details["error"])
    if kind == "extra_forbidden":
        return _unknown(loc, data)
    if error["input"] is None and kind != "missing":
        return _EMPTY
    return _TEXTS.get(kind, "is not valid; see docs/config.md for what it may be").format_map(details)


def _unknown(loc: Loc, data: Any) -> str:
    """Say which settings there are where an unknown one stands."""
    known = sorted(_settings_at(loc[:-1]))
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.75)
    advice = f"did you mean `{close[0]}`?" if close else f"remove it; known here: {', '.join(known)}"
    return f"is not a setting; {advice}"


def _settings_at(loc: Loc) -> list[str]:
    """Return the names of the settings of the section at a location."""
    section: type[Section] = FileSettings
    for part in loc:
        field = section.model_fields.get(str(part))
        if field is not None:
            section = section_in(field.annotation) or section
    return list(section.model_fields)


def _names_in(data: dict[str, Any], section: str) -> frozenset[str]:
    entries = data.get(section)
    return frozenset(entries) if isinstance(entries, dict) else frozenset()


def _without(data: dict[str, Any], bad: set[Loc]) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Return the data without the entries at fault, and the places of the tenants that are left."""
    kept: dict[str, Any] = {}
    found: dict[str, tuple[int, ...]] = {}
    for key, value in data.items():
        if (key,) in bad:
            continue
        if isinstance(value, dict):
            kept[key] = {name: entry for name, entry in value.items() if (key, name) not in bad}
        elif isinstance(value, list):
            places = tuple(place for place in range(len(value)) if (key, place) not in bad)
            kept[key] = [value[place] for place in places]
            found[key] = places
        else:
            kept[key] = value
    return kept, found
