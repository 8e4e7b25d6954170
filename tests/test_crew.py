"""What a process of several says to its supervisor."""

import subprocess
import sys


def test_a_supervisor_that_is_gone_is_told_nothing() -> None:
    code = "import sys; from forebay.crew import say; say('here'); sys.stdin.read(); say('lives')"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdin is not None and child.stdout is not None and child.stderr is not None
        assert child.stdout.readline() == b"@here\n"
        child.stdout.close()
        child.stdin.close()
        assert child.stderr.read() == b""
        assert child.wait() == 0
