"""The `forebay` command."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from forebay import __version__
from forebay.cli.calibrated import read_spec
from forebay.cli.check import run_check
from forebay.cli.key import run_key_new
from forebay.cli.options import AS_JSON, command_of
from forebay.cli.plan import Calibrating, Comparison, run_plan_calibrate, run_plan_compare
from forebay.cli.prove import Wish, run_prove
from forebay.cli.rules import run_rules_test
from forebay.cli.serve import Wish as Serving
from forebay.cli.serve import run_serve
from forebay.cli.sim import run_sim
from forebay.cli.tokens import read_input, run_tokens
from forebay.cli.traffic import run_traffic
from forebay.clock import SystemClock
from forebay.config.load import Address, environment, parse_address

app = typer.Typer(
    help="The front for self-hosted LLM inference.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
keys = typer.Typer(help="API keys.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(keys, name="key")
rules = typer.Typer(help="Rules on requests.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(rules, name="rules")
plan = typer.Typer(help="The same code on a virtual clock.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(plan, name="plan")
DataDir = Annotated[Path, typer.Option(help="The folder of the data plane, whose journal is read.")]
Since = Annotated[str, typer.Option(help="How far back: a number and s, m, h or d, such as 90m or 7d.")]
AsJson = Annotated[bool, AS_JSON]
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
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Processes that serve clients; goes before the file's [1].")
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace the process that runs on the data folder; no call is lost.")
    ] = False,
) -> None:
    """Serve the configured engines, or those found here, or a small embedded one."""
    raise typer.Exit(run_serve(Serving(config, _address(listen), _address(admin), data_dir, workers, take_over)))


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
    engine: Annotated[
        Path | None, typer.Option(help="JSON of `forebay plan calibrate`: its speed and room [those of the study].")
    ] = None,
) -> None:
    """Run a simulated engine: vLLM's API, numbered tokens, and every failure on demand."""
    try:
        spec = read_spec(engine)
        run_sim(host, port, replace(spec, models=tuple(model)) if model else spec, faults)
    except (OSError, ValueError) as error:
        print(f"forebay sim: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@keys.command("new")
def key_new() -> None:
    """Make a random API key, and its digest for the configuration."""
    run_key_new()


@app.command()
def prove(
    url: Annotated[str | None, typer.Option(help="The engine [one that runs here, else an embedded one].")] = None,
    model: Annotated[str | None, typer.Option(help="Its model [the first one that it lists].")] = None,
    seconds: Annotated[float, typer.Option(help="How long the measurement takes, about.")] = 60.0,
    key_env: Annotated[str | None, typer.Option(help="Name of the variable that holds the engine's key.")] = None,
    seed: Annotated[int, typer.Option(help="Of arrivals and prompts.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Measure your own engine under a mixed load: direct against through Forebay."""
    raise typer.Exit(run_prove(Wish(url, model, seconds, key_env, seed), as_json=as_json))


@app.command()
def traffic(data_dir: DataDir = Path("forebay-data"), since: Since = "24h", as_json: AsJson = False) -> None:
    """Show what came in: lengths, templates, reuse, peak hours, from the journal."""
    raise typer.Exit(run_traffic(data_dir, since, as_json=as_json))


@app.command()
def tokens(
    text: Annotated[str | None, typer.Argument(help="The text; without it and without --file, standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="A file that holds the text.")] = None,
    url: Annotated[str, typer.Option(help="An engine, or a Forebay before it.")] = "http://127.0.0.1:7080",
    model: Annotated[str | None, typer.Option(help="Its model, where it has several.")] = None,
    key_env: Annotated[str | None, typer.Option(help="Name of the variable that holds the key.")] = None,
) -> None:
    """Show how an engine's tokenizer cuts a text, beside a normal one."""
    try:
        read = read_input(text, file)
    except (OSError, ValueError) as error:
        print(f"forebay tokens: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    raise typer.Exit(run_tokens(url, model, read, environment().get(key_env) if key_env else None))


@rules.command("test")
def rules_test(config: ConfigFile, data_dir: DataDir = Path("forebay-data"), since: Since = "24h") -> None:
    """Show what the rules of a file would have done to the traffic in the journal."""
    raise typer.Exit(run_rules_test(config, data_dir, since, SystemClock().wall_s()))


plan.command("compare")(command_of(Comparison, run_plan_compare))
plan.command("calibrate")(command_of(Calibrating, run_plan_calibrate))


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
