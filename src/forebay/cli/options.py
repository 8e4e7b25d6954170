"""Commands whose options are the fields of a struct, so that each option is declared once."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

import msgspec
import typer
from msgspec import Struct

AS_JSON = typer.Option("--json", help="Print one JSON document instead of tables.")
Wanted = TypeVar("Wanted", bound=Struct)


def command_of(kind: type[Wanted], run: Callable[[Wanted], int]) -> Callable[..., None]:
    """Make a function that typer reads as a command.

    Args:
        kind: its fields are the options: `Annotated[type, typer.Option(help=...)]` and a default.
        run: the command; its first line is the help, what it returns the exit code.
    """

    def command(**options: Any) -> None:
        raise typer.Exit(run(kind(**options)))

    hints = get_type_hints(kind, include_extras=True)
    parameters = []
    for field in msgspec.structs.fields(kind):
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        if default is msgspec.NODEFAULT:
            default = inspect.Parameter.empty
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name])
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = hints
    command.__doc__ = (run.__doc__ or "").partition("\n")[0]
    return command
