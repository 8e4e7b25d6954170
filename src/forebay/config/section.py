"""What every part of the schema is made of: a section that takes nothing unknown, and how a setting is declared."""

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field

NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$"
MAX_COUNT = 1_000_000

Name = Annotated[str, Field(pattern=NAME)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Workers = Annotated[int, Field(ge=1, le=64)]


class Section(BaseModel):
    """A mapping of the file: unknown settings are errors, and no value is converted."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        protected_namespaces=(),
    )


def setting(default: Any, unit: str, meaning: str, **bounds: Any) -> Any:
    """Declare a setting.

    Args:
        default: `...` when it must be given.
        unit: of its value, for the reference page; empty when it has none.
        meaning: one sentence for the reference page.
        bounds: as pydantic's `Field` takes them.
    """
    return Field(default, description=meaning, json_schema_extra={"unit": unit}, **bounds)


def section_in(annotation: Any) -> type[Section] | None:
    """Return the section that a field holds: itself, or in an optional, a list or a mapping; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_in(part)) is not None), None)
