"""Runs a `forebay` command that ends with whoever started it: `python -m forebay.cli.attached serve ...`.

Its standard input is a pipe that the parent keeps open, as `processes.Child` does. At its end, which also a killed
parent brings about, the command gets SIGTERM, and a little later the process ends in any case.
"""

import os
import signal
import threading
import time
from contextlib import suppress

from forebay.cli.main import main

HARD_STOP_S = 10.0


def _watch() -> None:
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(HARD_STOP_S)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_watch, name="watch stdin", daemon=True).start()
    main()
