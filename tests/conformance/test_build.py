"""What is installed: compiled where the machine can compile, and not silently the slower kind."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

WHERE = "import forebay.pipeline as p, forebay.upstream.relay as r; print(p.__file__, r.__file__)"


@pytest.mark.skipif(not os.environ.get("FOREBAY_TEST_INSTALLED"), reason="the sources are under test")
def test_the_installed_request_path_is_compiled_where_it_can_be(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    try:
        from hatch_build import why_not  # noqa: PLC0415 - not importable before
    finally:
        sys.path.pop(0)
    reason = why_not("standard")
    if reason:
        pytest.skip(reason)
    done = subprocess.run([sys.executable, "-c", WHERE], capture_output=True, text=True, cwd=tmp_path, check=True)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert all(name.endswith(suffix) for name in done.stdout.split()), done.stdout
