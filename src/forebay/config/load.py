"""The configuration file to `Settings`: read, validated and compiled, or all faults at once."""

import os
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forebay.config.addresses import Address, parse_address
from forebay.config.checks import check_addresses, check_entries, reachable_of
from forebay.config.compile import compile_policy
from forebay.config.faults import Faults
from forebay.config.joint import Joint, joint_of
from forebay.config.source import MAX_BYTES, read_yaml
from forebay.config.validation import validate
from forebay.errors import ConfigError
from forebay.policy import Model, Policy, Pool

__all__ = [
    "Address",
    "Pinned",
    "Settings",
    "default_settings",
    "environment",
    "load",
    "load_joint",
    "parse_address",
    "parse_file",
    "read_file",
]

HASH_DIGITS = 12


class Pinned(Struct, frozen=True):
    """Addresses that the file cannot change.

    Attributes:
        listen: of the command line; goes before that of the file.
        admin: of the command line; goes before that of the file.
        bound: where the data plane listens already; a file that is not safe there is refused.
    """

    listen: Address | None = None
    admin: Address | None = None
    bound: Address | None = None


class Settings(Struct, frozen=True):
    """What a process starts with.

    Attributes:
        listen: of the data plane.
        admin: of the control plane.
        log_level: debug, info, warning or error.
        policy: what the data plane decides from.
        digest: SHA-256 of the bytes it was made from, 32 bytes.
        pinned: what went before the file.
        joint: how this node meets others.
        workers: processes that serve clients.
    """

    listen: Address
    admin: Address
    log_level: str
    policy: Policy
    digest: bytes
    pinned: Pinned = Pinned()
    joint: Joint = Joint()
    workers: int = 1

    def __repr__(self) -> str:
        """Show no part of the policy, which holds credentials."""
        return f"Settings(listen={self.listen}, admin={self.admin}, hash={self.policy.hash})"


def environment() -> Mapping[str, str]:
    """Return a copy of the process's environment."""
    return dict(os.environ)  # noqa: TID251 - the one place that reads it


def load(
    path: Path,
    environ: Mapping[str, str],
    wall_s: float,
    *,
    listen: Address | None = None,
    admin: Address | None = None,
) -> Settings:
    """Read the configuration file.

    Args:
        path: of the file.
        environ: names to values, for `env:NAME`.
        wall_s: Unix seconds; becomes `Policy.created`.
        listen: goes before that of the file.
        admin: goes before that of the file.

    Raises:
        ConfigError: the file cannot be used; it holds every fault that was found.
    """
    return parse_file(read_file(path), str(path), environ, wall_s, Pinned(listen, admin))


def read_file(path: Path) -> bytes:
    """Return the bytes of a file; one byte more than `MAX_BYTES` of a longer one.

    Raises:
        ConfigError: it cannot be read, or is not a regular file.
    """
    faults = Faults(str(path))
    try:
        # Looked at before it is opened: to open a named pipe would wait for ever.
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        faults.add((), "is not a regular file; name a file with the configuration")
    except OSError as error:
        faults.add((), f"cannot be read: {error.strerror}; check the path and its permissions")
    except ValueError:
        faults.add((), "cannot be read: its name holds a zero byte; check the path")
    raise faults.error()


def parse_file(data: bytes, name: str, environ: Mapping[str, str], wall_s: float, pinned: Pinned) -> Settings:
    """Make settings of the bytes of a file.

    Args:
        data: the bytes.
        name: how the file is called in a fault.
        environ: names to values, for `env:NAME`.
        wall_s: Unix seconds; becomes `Policy.created`.
        pinned: addresses that the file cannot change.

    Raises:
        ConfigError: the file cannot be used; it holds every fault that was found.
    """
    faults = Faults(name)
    values = read_yaml(data, faults)
    draft = None if values is None else validate(values, faults)
    if draft is None:
        raise faults.error()
    listen = pinned.listen or parse_address(draft.settings.listen)
    admin = pinned.admin or parse_address(draft.settings.admin)
    check_entries(draft, faults)
    check_addresses(draft, listen, admin, pinned.bound, faults)
    policy = compile_policy(draft, environ, reachable_of(listen, pinned.bound), faults)
    joint = joint_of(draft, environ, faults)
    faults.raise_if_any()
    digest = sha256(data).digest()
    return Settings(
        listen=listen,
        admin=admin,
        log_level=draft.settings.log.level,
        policy=replace(policy, hash=digest.hex()[:HASH_DIGITS], created=int(wall_s)),
        digest=digest,
        pinned=pinned,
        joint=joint,
        workers=draft.settings.workers,
    )


def load_joint(path: Path, environ: Mapping[str, str]) -> Joint:
    """Read from the configuration file how this node meets others, and nothing else.

    Args:
        path: of the file.
        environ: names to values, for `env:NAME`.

    Raises:
        ConfigError: the file cannot be read, or what it says about that is faulty.
    """
    faults = Faults(str(path))
    values = read_yaml(read_file(path), faults)
    draft = None if values is None else validate(values, faults)
    if draft is None:
        raise faults.error()
    joint = joint_of(draft, environ, faults)
    faults.raise_if_any()
    return joint


def default_settings(
    listen: Address, admin: Address, pools: Mapping[str, Pool], models: Mapping[str, Model], wall_s: float = 0.0
) -> Settings:
    """Return settings for running without a file: no keys, so on loopback only.

    Args:
        listen: of the data plane.
        admin: of the control plane.
        pools: by name.
        models: by name.
        wall_s: Unix seconds; becomes `Policy.created`.

    Raises:
        ConfigError: `listen` can be reached from other machines.
    """
    if not listen.is_loopback:
        raise ConfigError(
            [f"--listen: {listen}: other machines reach it, and without a file there are no keys; use -c with tenants"]
        )
    policy = Policy(pools=dict(pools), models=dict(models), tenants={}, created=int(wall_s))
    digest = sha256(msgspec.json.encode([policy.pools, policy.models], order="deterministic")).digest()
    policy = replace(policy, hash=digest.hex()[:HASH_DIGITS])
    return Settings(listen, admin, "info", policy, digest, Pinned(listen, admin))
