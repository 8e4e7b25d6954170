"""What a node needs to know to be one of several: the store's address and its own name."""

import importlib.util
import re
import socket
from collections.abc import Mapping

from msgspec import Struct

from forebay.config.addresses import Address, check_store
from forebay.config.credentials import resolve
from forebay.config.faults import Faults
from forebay.config.validation import Draft

_MISSING = "needs the Redis client; install it with: pip install 'forebay[redis]'"


class Joint(Struct, frozen=True):
    """How this node meets others.

    Attributes:
        url: of the store, with its password; empty without one.
        node: name of this node; empty without one, see `node_name`.
        nodes: that there are at least.
    """

    url: str = ""
    node: str = ""
    nodes: int = 1

    def __repr__(self) -> str:
        """Show no password."""
        return f"Joint(store={bool(self.url)}, node={self.node}, nodes={self.nodes})"


def joint_of(draft: Draft, environ: Mapping[str, str], faults: Faults) -> Joint:
    """Return how this node meets others.

    Args:
        draft: what is valid by itself.
        environ: names to values, for `env:NAME`.
        faults: gets a variable that is not there or holds no URL, and a client that is not installed.
    """
    settings = draft.settings
    url = ""
    if settings.store.url is not None:
        try:
            url = resolve(settings.store.url, environ)
            check_store(url)
        except ValueError as error:
            faults.add(("store", "url"), str(error))
        if importlib.util.find_spec("redis") is None:
            faults.add(("store", "url"), _MISSING)
    return Joint(url, settings.node or "", settings.store.nodes)


def node_name(joint: Joint, listen: Address) -> str:
    """Return the name of a node: its own, else that of its host with the port, unique where host names are."""
    if joint.node:
        return joint.node
    host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()).lstrip(".-")[:48]
    return f"{host or 'forebay'}-{listen.port}"
