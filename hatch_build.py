"""Compiles the rooms of the request path with mypyc when a wheel is built, if the machine can.

The sources are the same; compiled they take about half the CPU per request (docs/decisions/0006). Where
there is no compiler, or FOREBAY_PURE is set, the wheel is pure Python and does the same, slower. An
editable install is always pure, so that what one edits is what runs.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# What runs for each request or chunk, but for modules with structs to decode into (`shapes`, `said`, `usage`, `typed`,
# `lines`): msgspec reads their annotations, which mypyc does not keep.
COMPILED = (
    "traffic", "wire/sse", "wire/members", "wire/splice", "wire/rewrite", "wire/notice", "wire/depth", "wire/facts",
    "wire/answers", "wire/usage", "edge/connection", "edge/headers", "edge/reply", "edge/routes", "edge/body",
    "edge/values", "edge/prompt", "edge/ending", "edge/render", "identity/address", "identity/keys", "understanding",
    "admission/gate", "admission/basin", "admission/queue", "admission/served", "admission/claims", "admission/quota",
    "admission/spending", "admission/window", "admission/terms", "admission/hygiene", "admission/rules",
    "admission/predicates", "admission/pointers", "admission/work", "admission/texts", "admission/tokens",
    "admission/outputs",
    "routing/pool", "routing/replica", "routing/capacity", "routing/prefixes", "routing/budget", "routing/breaker",
    "routing/rotation", "routing/ejection", "routing/outlook", "routing/headroom", "routing/attempts",
    "dispatch", "continuing", "preparing", "cleaning", "pipeline",
    "upstream/connection", "upstream/connections", "upstream/relay", "upstream/watch",
    "upstream/continuation/transcript", "upstream/continuation/token_ids", "upstream/continuation/thread",
    "upstream/send", "upstream/trial", "upstream/deadlines", "upstream/learned", "upstream/whole", "recording/record",
    "recording/metrics", "recording/journal", "degrade/tenants", "degrade/pressure", "degrade/ladder", "degrade/steps",
    "edge/shared", "admission/kept", "joining", "timing", "degrading", "laddering", "sparing", "lessons", "placing",
    "retrying",
)  # fmt: skip


class CompileHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, or say why not."""
        reason = why_not(version)
        if reason:
            self.app.display_info(f"pure Python: {reason}")
            return
        try:
            self._work = tempfile.mkdtemp(prefix="forebay-build-")
            modules = compile_in(Path(self._work), Path(self.root))
        except (Exception, SystemExit) as error:  # mypyc ends the process on a fault of its own
            self.app.display_warning(f"pure Python: mypyc failed ({type(error).__name__}: {error})")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update(modules)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled outside the wheel."""
        shutil.rmtree(getattr(self, "_work", ""), ignore_errors=True)


def why_not(version: str) -> str:
    """Say why nothing is compiled; empty when it is."""
    if version == "editable":
        return "an editable install runs the sources"
    if os.environ.get("FOREBAY_PURE"):
        return "FOREBAY_PURE is set"
    if shutil.which(os.environ.get("CC", "cc")) is None:
        return "no C compiler (Debian: apt-get install gcc libc6-dev)"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "no Python headers (Debian: apt-get install python3-dev)"
    return ""


def compile_in(work: Path, root: Path) -> dict[str, str]:
    """Compile a copy of the sources; return where each extension lies, and where it belongs in the wheel."""
    from mypyc.build import mypycify  # noqa: PLC0415 - only needed, and only there, when compiling
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    shutil.copytree(root / "src" / "forebay", work / "forebay", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    before, arguments = Path.cwd(), sys.argv
    os.chdir(work)
    try:
        paths = [f"forebay/{module}.py" for module in COMPILED]
        extensions = mypycify(["--ignore-missing-imports", *paths], opt_level="3", target_dir=str(work / "c"))
        for extension in extensions:
            # mypyc makes all warnings errors; another compiler than its authors' finds some that are none.
            extension.extra_compile_args.append("-Wno-error")
        command = build_ext(Distribution({"name": "forebay", "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(work / "lib"), str(work / "tmp")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
        sys.argv = arguments
    return {str(path): str(path.relative_to(work / "lib")) for path in (work / "lib").rglob("*.so")}
