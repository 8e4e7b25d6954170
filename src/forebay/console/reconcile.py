"""How documents of several nodes become one: by (epoch, seq), and by their entries where two have changed. Pure."""

from msgspec import Struct
from msgspec.structs import replace

from forebay.config.documents import Override, OverrideDocument, StateDocument

Version = tuple[int, int]

MOST_ENTRIES = 1000
# A version far beyond the clock could never be followed by another one; neither could an end that never comes.
FUTURE_S = 86_400
MOST_SEQ = 2**40


class Step(Struct, frozen=True):
    """What is to be done with the override document.

    Attributes:
        write: it here.
        publish: it to the others.
    """

    write: OverrideDocument | None = None
    publish: OverrideDocument | None = None


def version_of(document: OverrideDocument | StateDocument | None) -> Version:
    """Return (epoch, seq); (0, 0) of nothing."""
    return (0, 0) if document is None else (document.epoch, document.seq)


def step(
    base: OverrideDocument, local: OverrideDocument, remote: OverrideDocument | None, held: Version, wall_s: float
) -> Step:
    """Decide what becomes of the override documents of this node and of the store.

    Args:
        base: what both held when they last agreed.
        local: of this node.
        remote: of the store; None when it has none.
        held: version that the data plane works with; a document that is not newer would be refused there.
        wall_s: Unix seconds.
    """
    if remote is None or version_of(remote) < version_of(base):
        # The store is new, or has lost what it held.
        return Step(publish=local) if version_of(local) > (0, 0) else Step()
    if remote == local:
        return Step()
    if remote == base and version_of(local) > version_of(remote):
        return Step(publish=local)
    if local == base and version_of(remote) > max(version_of(local), held):
        return Step(write=remote)
    epoch, seq = max(version_of(local), version_of(remote), held)
    both = replace(local, epoch=epoch, seq=seq + 1, entries=merged(base, local, remote, wall_s))
    return Step(write=both, publish=both)


def merged(
    base: OverrideDocument, local: OverrideDocument, remote: OverrideDocument, wall_s: float
) -> tuple[Override, ...]:
    """Return the entries of the store with the changes of this node: those it has added, without those it has ended."""
    before = {entry.id for entry in base.entries}
    here = {entry.id for entry in local.entries}
    there = {entry.id for entry in remote.entries}
    ended = before - here
    kept = [entry for entry in remote.entries if entry.id not in ended]
    added = [entry for entry in local.entries if entry.id not in before | there]
    return tuple(entry for entry in (*kept, *added) if entry.expires_at > wall_s)[-MOST_ENTRIES:]


def fault_of(document: OverrideDocument | StateDocument, longest_s: float, wall_s: float) -> str:
    """Say why a document of the store is not taken; empty when it is.

    Args:
        document: of the right format.
        longest_s: that an override may last.
        wall_s: Unix seconds.
    """
    if document.epoch > wall_s + FUTURE_S or document.seq > MOST_SEQ:
        return "its version lies in the future"
    if isinstance(document, OverrideDocument):
        ends_s = max((entry.expires_at for entry in document.entries), default=0.0)
        if ends_s > wall_s + longest_s + FUTURE_S:
            return "an override in it does not end within a week"
        if len({entry.id for entry in document.entries}) < len(document.entries):
            return "two overrides in it have the same id"
    return ""
