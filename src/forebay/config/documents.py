"""The two documents that programs write: `state.json` (control plane) and `override.json` (people, through the API).

One writer each. A document carries (epoch, seq), so that an older one is refused; an override carries its
end, so that it stops by itself even if its writer is dead. The format is in docs/config.md.
"""

import os
import re
import stat
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, TypeVar, overload

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from forebay.config.rules import refuse_long
from forebay.policy import LevelOverride, Policy, Pool, Rule

SCHEMA = 1
MAX_BYTES = 1_048_576
MAX_TOKENS = 1_000_000_000
HASH_DIGITS = 12
ALL_MODELS = "*"
"""The target of an override that refuses long inputs, when all models are meant."""
NODE = "node"
"""The target of an override of the ladder's level that holds for all calls; else `pool NAME` or `tenant NAME`."""
MAX_LEVEL = 3

FINGERPRINT = re.compile("[0-9a-f]{16}")
"""How a request is named that engines died under."""

DocumentName = Literal["state", "override"]
OverrideKind = Literal["drain", "refuse_long_inputs", "ladder", "pardon"]
_Number = Annotated[int, Meta(ge=0, le=2**53)]
_WallS = Annotated[float, Meta(ge=0, le=2**53)]
_Short = Annotated[str, Meta(min_length=1, max_length=512)]
_Words = Annotated[str, Meta(max_length=1024)]


class StateDocument(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the control plane has decided.

    Attributes:
        epoch: grows when a writer starts from nothing.
        seq: grows with each document of an epoch.
        schema: version of the format.
        drained: `host:port` or names of replicas that get no new call.
    """

    epoch: _Number
    seq: _Number
    schema: Literal[1]
    drained: Annotated[tuple[_Short, ...], Meta(max_length=10_000)] = ()


class Override(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One change with an end; a field that it does not need is not written, so that older programs take the rest.

    Attributes:
        kind: `drain`: the replica gets no new call. `refuse_long_inputs`: longer inputs get 422 with advice.
            `ladder`: calls are served as that level of the ladder says. `pardon`: a request that engines died under is
            sent again.
        target: `host:port` or name of the replica; for `refuse_long_inputs` the name of a model, or `*`; for `ladder`
            `node`, `pool NAME` or `tenant NAME`; for `pardon` the request's 16 hexadecimal digits, as the status shows
            them.
        expires_at: Unix seconds; from then on it does not count.
        created_at: Unix seconds.
        tokens: of the longest input that is still served; for `refuse_long_inputs` alone.
        level: 0 to 3; for `ladder` alone.

    Raises:
        ValueError: `tokens`, `level` or `target` does not fit `kind`.
    """

    id: _Short
    kind: OverrideKind
    target: _Short
    expires_at: _WallS
    by: _Words
    reason: _Words
    created_at: _WallS
    tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None
    level: Annotated[int, Meta(ge=0, le=MAX_LEVEL)] | None = None

    def __post_init__(self) -> None:
        fault = tokens_fault(self.kind, self.tokens)
        if fault:
            raise ValueError(f"`tokens` {fault}")
        fault = level_fault(self.kind, self.level)
        if fault:
            raise ValueError(f"`level` {fault}")
        if self.kind == "ladder" and level_of(self.target, 0) is None:
            raise ValueError("`target` is not `node`, `pool NAME` or `tenant NAME`")
        if self.kind == "pardon" and not FINGERPRINT.fullmatch(self.target):
            raise ValueError("`target` of a pardon must be the 16 hexadecimal digits of a request")


def tokens_fault(kind: OverrideKind, tokens: int | None) -> str:
    """Say why a number of tokens, or none, does not fit a kind of override; empty when it does."""
    if kind == "refuse_long_inputs" and tokens is None:
        return "is missing; give the tokens of the longest input that is still served"
    if kind != "refuse_long_inputs" and tokens is not None:
        return f"does not belong to `{kind}`; leave it out"
    return ""


def level_fault(kind: OverrideKind, level: int | None) -> str:
    """Say why a level, or none, does not fit a kind of override; empty when it does."""
    if kind == "ladder" and level is None:
        return f"is missing; give 0 to {MAX_LEVEL}"
    if kind != "ladder" and level is not None:
        return f"does not belong to `{kind}`; leave it out"
    return ""


def level_of(target: str, level: int) -> LevelOverride | None:
    """Read the target of an override of the ladder; None when it is none."""
    if target == NODE:
        return LevelOverride("node", "", level)
    scope, _, name = target.partition(" ")
    if not name:
        return None
    if scope == "pool":
        return LevelOverride("pool", name, level)
    return LevelOverride("tenant", name, level) if scope == "tenant" else None


class OverrideDocument(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What people have changed through the API; see `StateDocument` for the first three fields."""

    epoch: _Number
    seq: _Number
    schema: Literal[1]
    entries: Annotated[tuple[Override, ...], Meta(max_length=1000)] = ()

    def active(self, wall_s: float) -> tuple[Override, ...]:
        """Return the entries whose end has not come at `wall_s` Unix seconds."""
        return tuple(entry for entry in self.entries if entry.expires_at > wall_s)


Document = TypeVar("Document", StateDocument, OverrideDocument)


class DocumentError(Exception):
    """A document that cannot be used; the text is the reason."""


class Verdict(Struct, frozen=True):
    """Whether a document replaces the one before.

    Attributes:
        take: whether it does.
        reason: why it is refused; empty when it is taken, or is the same once more.
    """

    take: bool
    reason: str = ""


def newer(old: Document | None, new: Document) -> Verdict:
    """Decide on a document by (epoch, seq).

    Args:
        old: the one in force, if there is one.
        new: the one that was read.
    """
    if old is None:
        return Verdict(take=True)
    held, offered = (old.epoch, old.seq), (new.epoch, new.seq)
    if offered > held:
        return Verdict(take=True)
    if offered < held:
        return Verdict(take=False, reason=f"{_version(new)} is older than {_version(old)}, which stays")
    if new == old:
        return Verdict(take=False)
    return Verdict(take=False, reason=f"{_version(new)} has changed without a new seq; the first one stays")


def _version(document: StateDocument | OverrideDocument) -> str:
    return f"epoch {document.epoch} seq {document.seq}"


def path_of(folder: Path, name: DocumentName) -> Path:
    """Return where a document stands."""
    return folder / f"{name}.json"


@overload
def read_document(folder: Path, name: Literal["state"]) -> StateDocument | None: ...
@overload
def read_document(folder: Path, name: Literal["override"]) -> OverrideDocument | None: ...
def read_document(folder: Path, name: DocumentName) -> StateDocument | OverrideDocument | None:
    """Read a document; None when there is no such file.

    Raises:
        DocumentError: it cannot be read, is too long, or is not of the format.
    """
    path = path_of(folder, name)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DocumentError("is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}") from None
    return decode_document(data, name)


def encode_document(document: StateDocument | OverrideDocument) -> bytes:
    """Return the bytes of a document."""
    return msgspec.json.encode(document)


def decode_document(data: bytes, name: DocumentName) -> StateDocument | OverrideDocument:
    """Read the bytes of a document.

    Raises:
        DocumentError: they are too long, or not of the format.
    """
    if len(data) > MAX_BYTES:
        raise DocumentError(f"is larger than {MAX_BYTES} bytes")
    try:
        if name == "state":
            return msgspec.json.decode(data, type=StateDocument)
        return msgspec.json.decode(data, type=OverrideDocument)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError(f"is not of the format: {error}") from None


@overload
def write_document(folder: Path, name: Literal["state"], document: StateDocument) -> None: ...
@overload
def write_document(folder: Path, name: Literal["override"], document: OverrideDocument) -> None: ...
def write_document(folder: Path, name: DocumentName, document: StateDocument | OverrideDocument) -> None:
    """Replace a document: readers see the old one or the new one, also after a power failure.

    Args:
        folder: made if it is not there, for this user alone.
        name: which of the two.
        document: what to write.

    Raises:
        DocumentError: a reader would refuse it; nothing has changed.
        OSError: it cannot be written; the old one is still there.
    """
    data = encode_document(document)
    decode_document(data, name)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path_of(folder, name))
    except BaseException:
        with suppress(OSError):
            Path(draft).unlink()
        raise
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Make a rename last: it is a change of the folder, which has its own buffer."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def merge(policy: Policy, state: StateDocument | None, override: OverrideDocument | None, wall_s: float) -> Policy:
    """Return the policy that the three documents make together; its hash covers all three.

    Args:
        policy: of the configuration file.
        state: of the control plane.
        override: of people; what has ended does not count.
        wall_s: Unix seconds.
    """
    if state is None and override is None:
        return policy
    active = () if override is None else override.active(wall_s)
    counting = None if override is None else replace(override, entries=active)
    targets = set(() if state is None else state.drained)
    targets.update(entry.target for entry in active if entry.kind == "drain")
    content = msgspec.json.encode([policy.hash, state, counting])
    drained = frozenset(name for pool in policy.pools.values() for name in _targeted(pool, targets))
    rules = (*_refusing(active, policy), *policy.rules)
    levels = [level_of(entry.target, entry.level) for entry in active if entry.level is not None]
    return replace(
        policy.draining(drained),
        rules=rules,
        levels=tuple(level for level in levels if level is not None),
        pardoned=frozenset(entry.target for entry in active if entry.kind == "pardon"),
        hash=sha256(content).hexdigest()[:HASH_DIGITS],
    )


def _refusing(entries: tuple[Override, ...], policy: Policy) -> list[Rule]:
    """Return the rules of the overrides that refuse long inputs; for a model that is not there, none.

    Of two for the same target the lower limit holds, as both are meant. The lowest limit of all comes first, so
    that a client is told the one that it must keep.
    """
    limits: dict[str, int] = {}
    for entry in entries:
        if entry.tokens is not None and (entry.target == ALL_MODELS or entry.target in policy.models):
            limits[entry.target] = min(entry.tokens, limits.get(entry.target, entry.tokens))
    return [refuse_long(model, limits[model]) for model in sorted(limits, key=lambda model: (limits[model], model))]


def _targeted(pool: Pool, targets: set[str]) -> list[str]:
    """Return the names of the replicas that are meant: by name, or by host and port where the name has a path too."""
    return [
        replica.name
        for replica in pool.replicas
        if replica.name in targets or replica.name.removesuffix(replica.base_path) in targets
    ]
