"""The engine of a calibration, from the file that `forebay plan calibrate --json` wrote."""

from pathlib import Path

import msgspec
from msgspec import Struct

from forebay.engines.sim import SimSpec


class _Document(Struct):
    """The part of it that is needed."""

    spec: SimSpec


def read_spec(path: Path | None) -> SimSpec:
    """Return the simulated engine that a file describes; without one that of the study.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no calibration.
    """
    if path is None:
        return SimSpec()
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Document).spec
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is no JSON of `forebay plan calibrate`: {error}") from None
