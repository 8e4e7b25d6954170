"""Whether answers can be resumed here: the one module of this room that needs no extra."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from forebay.resume.office import Office

ADVICE: Final = "install it with `pip install 'forebay[resume]'`"


def missing() -> str:
    """Return what is missing for answers to be resumed, and what to do; empty when nothing is."""
    try:
        import forebay.resume.office  # noqa: F401, PLC0415 - needs the optional extra
    except ImportError as error:
        return f"the extra forebay[resume] is not installed ({error.name} is missing); {ADVICE}"
    return ""


def office(data_dir: Path, wall_s: Callable[[], float]) -> "Office | None":
    """Return what gives out tokens; None without the extra.

    Args:
        data_dir: where the node keeps a key of its own.
        wall_s: returns Unix seconds.
    """
    if missing():
        return None
    from forebay.resume.office import Office  # noqa: PLC0415 - needs the optional extra
    from forebay.resume.secret import own_secret  # noqa: PLC0415 - not read without the extra

    return Office(own_secret(data_dir), wall_s)
