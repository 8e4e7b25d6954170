"""Makes docs/cli.md of the commands themselves: `python -m tests.docs.cli_page > docs/cli.md`."""

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import typer
import typer.core

from forebay.cli.main import app
from forebay.engines.sim.faults import Action, AnyAction

INTRO = """\
# Commands

<!-- Made by `python -m tests.docs.cli_page` from the commands. Change their help, not this page. -->

Faults go to standard error, everything else to standard output. `--help` behind each command shows the same.

"""
EXIT_CODES = """\
## Exit codes

| code | meaning |
| --- | --- |
| 0 | done; `serve`: stopped as asked |
| 2 | the configuration is invalid, or the command line is; `sim`: it cannot listen, or its script is invalid |
| 3 | `serve`: the data port cannot be listened on |

"""
SIM = """\
## Faults of the simulated engine

`forebay sim` has vLLM's routes and telemetry. It computes nothing: its answer is `t0 t1 t2 ...`, as many tokens as
`max_tokens` allows, at the speed of an engine. It fails as it is told to by a script: a JSON list of steps, each used
up by one call that wants the engine to work. After the last step it is well.

```json
[{"action": "status", "status": 503, "times": 2},
 {"action": "ok"},
 {"action": "cut", "after_tokens": 40, "how": "rst"},
 {"action": "loading", "for_s": 60}]
```

| request | what it does |
| --- | --- |
| POST `/sim/faults` | replaces the script by the body |
| POST `/sim/reset` | no faults, counters at 0; calls that run go on |
| GET `/sim/stats` | connections, running and aborted sequences, KV blocks |
| GET `/sim/log?after=N` | the requests it has seen from number N+1 on, with their bodies: keep it on the loopback |

Every step may say how long it holds: `times` (calls, 1 unless said), `for_s` (seconds from when its turn comes) or
`always` (until the script is replaced). With `if_body` it is done only to calls whose body has this text. A member
without a default below must be given.

| action | members | what it does |
| --- | --- | --- |
"""


def _first_line(text: str | None) -> str:
    return re.split(r"\n\s*\n", inspect.cleandoc(text or ""))[0].replace("\n", " ")


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"## forebay {name}\n\n{_first_line(command.help)}\n\n"
    if not command.params:
        return
    yield "| option | default | meaning |\n| --- | --- | --- |\n"
    for option in command.params:
        names = ", ".join(f"`{opt}`" for opt in option.opts)
        # Defaults that depend on something stand in brackets at the end of the help.
        said, _, noted = option.help.partition(" [")
        default = noted.rstrip("].") if noted else option.default
        shown = "required" if option.required else "none" if default is None else f"`{default}`"
        yield f"| {names} | {shown}{', repeatable' if option.multiple else ''} | {said.rstrip('.')}. |\n"
    yield "\n"


def _members(action: type[Action]) -> str:
    common = {field.name for field in msgspec.structs.fields(Action)}
    own = [field for field in msgspec.structs.fields(action) if field.name not in common]
    return ", ".join(
        f"`{field.encode_name}`" + ("" if field.required else f" (`{msgspec.json.encode(field.default).decode()}`)")
        for field in own
    )


def _faults() -> Iterator[str]:
    for action in get_args(AnyAction):
        yield f"| `{action.__struct_config__.tag}` | {_members(action)} | {_first_line(action.__doc__)} |\n"


def commands() -> dict[str, Any]:
    """Every command by name, those of a group behind its name, in the order of the help."""
    found: dict[str, Any] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        if isinstance(command, typer.core.TyperGroup):
            found.update((f"{name} {child}", nested) for child, nested in command.commands.items())
        else:
            found[name] = command
    return found


def render() -> str:
    """The whole page."""
    described = [part for name, command in commands().items() for part in _command(name, command)]
    return "".join([INTRO, *described, EXIT_CODES, SIM, *_faults()])


if __name__ == "__main__":
    sys.stdout.write(render())
