"""The token of the admin port: made once, kept in the data folder.

`serve` uses this module too, to print the link with the token: it stays free of web libraries.
"""

import errno
import secrets
from pathlib import Path

from forebay.private import secret_in

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
    held = secret_in(path, lambda: f"{secrets.token_urlsafe(RANDOM_BYTES)}\n".encode(), MAX_BYTES)
    token = held.decode("ascii", "replace").strip()
    if len(token) < MIN_CHARS or not all("!" <= char <= "~" for char in token):
        fault = f"no token of at least {MIN_CHARS} visible ASCII characters; delete the file and start again"
        raise OSError(errno.EINVAL, fault, str(path))
    return token
