"""The token of the admin port: made once, kept in the data folder.

`serve` uses this module too, to print the link with the token: it stays free of web libraries.
"""

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

FILE_NAME = "admin-token"
RANDOM_BYTES = 32
MIN_CHARS = 32
MAX_BYTES = 1024


def admin_token(data_dir: Path) -> str:
    """Return the token of a data folder; make both when they are not there.

    Of several processes that start at once, one makes the token and all get the same.

    Raises:
        OSError: the file cannot be read or written, or holds no usable token.
    """
    path = data_dir / FILE_NAME
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _create(path)
    return _read(path)


def _create(path: Path) -> None:
    """Write a new token beside the path and link it there, unless another process has been faster."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(RANDOM_BYTES) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _read(path: Path) -> str:
    """Read the token; take away the rights that others have on the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
        token = file.read(MAX_BYTES).decode("ascii", "replace").strip()
    if len(token) < MIN_CHARS or not all("!" <= char <= "~" for char in token):
        fault = f"no token of at least {MIN_CHARS} visible ASCII characters; delete the file and start again"
        raise OSError(errno.EINVAL, fault, str(path))
    return token
