"""The key of a node that the configuration names none for: random, made once, kept in the data folder."""

import logging
import secrets
from pathlib import Path
from typing import Final

from forebay.private import secret_in

FILE_NAME: Final = "resume-key"
_BYTES: Final = 32
log = logging.getLogger(__name__)


def own_secret(data_dir: Path) -> bytes:
    """Return the secret of a data folder, 32 bytes; make it when it is not there.

    Of several processes that start at once, one makes it and all get the same. Where the folder cannot be used the
    secret is that of this process: it works, until it ends.
    """
    path = data_dir / FILE_NAME
    try:
        secret = secret_in(path, lambda: secrets.token_bytes(_BYTES), _BYTES + 1)
    except OSError as error:
        log.warning("answers cannot be resumed after a restart, %s cannot be used: %s", path, error.strerror)
        return secrets.token_bytes(_BYTES)
    if len(secret) != _BYTES:
        log.warning("answers cannot be resumed after a restart, %s holds no key; delete it and start again", path)
        return secrets.token_bytes(_BYTES)
    return secret
