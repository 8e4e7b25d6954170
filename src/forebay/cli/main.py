"""The `forebay` command."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from forebay import __version__
from forebay.cli.check import run_check
from forebay.cli.key import run_key_new
from forebay.cli.serve import run_serve
from forebay.cli.sim import run_sim
from forebay.config.load import Address, parse_address
from forebay.engines.sim import SimSpec

app = typer.Typer(
    help="The front for self-hosted LLM inference.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
keys = typer.Typer(help="API keys.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(keys, name="key")
ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The configuration file (YAML).")]


def _address(text: str | None) -> Address | None:
    if text is None:
        return None
    try:
        return parse_address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The configuration file; without it engines are looked for.")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the data plane [127.0.0.1:7080].")] = None,
    admin: Annotated[str | None, typer.Option(help="HOST:PORT of the control plane [127.0.0.1:7081].")] = None,
    data_dir: Annotated[Path, typer.Option(help="Journal, policy documents, admin token.")] = Path("forebay-data"),
) -> None:
    """Serve the configured engines, or those found here, or a small embedded one."""
    raise typer.Exit(run_serve(config, _address(listen), _address(admin), data_dir))


@app.command()
def check(config: ConfigFile) -> None:
    """Validate a configuration file: one line per fault, with path and line."""
    raise typer.Exit(run_check(config))


@app.command()
def sim(
    host: Annotated[str, typer.Option(help="Address to listen on; prompts can be read from it, so keep it local.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(help="TCP port; 0 takes any free one.")] = 9001,
    model: Annotated[list[str] | None, typer.Option(help="Model ids that it serves [sim].")] = None,
    faults: Annotated[Path | None, typer.Option(help="JSON list of faults to begin with.")] = None,
) -> None:
    """Run a simulated engine: vLLM's API, numbered tokens, and every failure on demand."""
    spec = SimSpec(models=tuple(model)) if model else SimSpec()
    try:
        run_sim(host, port, spec, faults)
    except (OSError, ValueError) as error:
        print(f"forebay sim: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@keys.command("new")
def key_new() -> None:
    """Make a random API key, and its digest for the configuration."""
    run_key_new()


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
