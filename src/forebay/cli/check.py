"""`forebay check`: validate a configuration file and start nothing."""

import sys
from pathlib import Path

from forebay.clock import SystemClock
from forebay.config.load import environment, load
from forebay.errors import ConfigError
from forebay.resume import extra


def run_check(path: Path) -> int:
    """Validate a file; print its faults to standard error, or what it serves to standard output.

    Returns:
        The exit code: 0 valid, 2 not.
    """
    try:
        settings = load(path, environment(), SystemClock().wall_s())
    except ConfigError as error:
        print("\n".join(error.faults), file=sys.stderr)
        return 2
    policy = settings.policy
    replicas = sum(len(pool.replicas) for pool in policy.pools.values())
    tenants = len({tenant.name for tenant in policy.tenants.values()})
    print(
        f"{path}: valid; listens on {settings.listen}; models {len(policy.models)}, pools {len(policy.pools)}, "
        f"replicas {replicas}, tenants {tenants or 'none (no keys)'}; hash {policy.hash}"
    )
    missing = extra.missing() if policy.resume.configured else ""
    if missing:
        print(f"{path}: resume: answers cannot be resumed: {missing}", file=sys.stderr)
    return 0
