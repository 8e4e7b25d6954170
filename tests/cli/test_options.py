"""Commands made of structs: each option is declared once."""

from pathlib import Path
from typing import Annotated

import pytest
import typer
from msgspec import Struct
from typer.testing import CliRunner

from forebay.cli.options import command_of


class Wanted(Struct, frozen=True, kw_only=True):
    name: Annotated[str, typer.Option(help="Whose.")]
    times: Annotated[int, typer.Option(min=1, help="So often.")] = 2
    among: Annotated[list[str], typer.Option("--one", help="May come several times.")] = []
    file: Annotated[Path | None, typer.Option(help="A file.")] = None


SEEN: list[Wanted] = []


def run(wanted: Wanted) -> int:
    """Do it.

    Returns:
        Exit code.
    """
    SEEN.append(wanted)
    return wanted.times


@pytest.fixture
def app() -> typer.Typer:
    SEEN.clear()
    made = typer.Typer(rich_markup_mode=None)
    made.command("do")(command_of(Wanted, run))
    return made


def test_options_become_a_struct_and_what_is_returned_the_exit_code(app: typer.Typer) -> None:
    assert CliRunner().invoke(app, ["--name", "x"]).exit_code == 2
    assert (
        CliRunner().invoke(app, ["--name", "y", "--times", "3", "--one", "a", "--one", "b", "--file", "f"]).exit_code
        == 3
    )
    assert SEEN == [Wanted(name="x"), Wanted(name="y", times=3, among=["a", "b"], file=Path("f"))]


def test_bounds_and_required_options_hold(app: typer.Typer) -> None:
    for wrong in ([], ["--name", "x", "--times", "0"], ["--name", "x", "--times", "many"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
    assert SEEN == []


def test_the_help_is_the_first_line_and_that_of_the_fields(app: typer.Typer) -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "Do it." in shown and "Whose." in shown and "Returns" not in shown
