"""Settings to `Policy`: keys are resolved and hashed, URLs taken apart, timeouts merged; pure."""

from collections.abc import Mapping

from msgspec.structs import replace

from forebay import policy
from forebay.config.addresses import Address, parse_replica
from forebay.config.credentials import MIN_PLAIN, resolve, tenant_key
from forebay.config.faults import Faults, Loc
from forebay.config.schema import PoolSettings, TenantSettings, TimeoutOverrides
from forebay.config.validation import Draft
from forebay.domain import Replica, Tenant


def compile_policy(
    draft: Draft, environ: Mapping[str, str], reachable: Address | None, faults: Faults
) -> policy.Policy:
    """Make the policy; it is complete only if no fault has been found.

    Args:
        draft: what is valid by itself.
        environ: names to values, for `env:NAME`.
        reachable: the address that other machines reach; None when there is none.
        faults: gets keys that are not there, twice there, or too short to be reached.
    """
    settings = draft.settings
    written = "first_byte_s" in settings.timeouts.model_fields_set
    base = policy.Timeouts(**settings.timeouts.model_dump(), first_byte_for_whole=written)
    return policy.Policy(
        pools={name: _pool(name, pool, base, environ, faults) for name, pool in settings.pools.items()},
        models=_models(draft, base),
        tenants=_tenants(draft, environ, reachable, faults),
        limits=policy.Limits(**settings.limits.model_dump()),
        stream=policy.Stream(**settings.stream.model_dump()),
        shutdown=policy.Shutdown(**settings.shutdown.model_dump()),
        cors_origins=frozenset(settings.cors.origins),
        trusted_proxies=tuple(dict.fromkeys(settings.trusted_proxies)),
    )


def _pool(
    name: str, settings: PoolSettings, base: policy.Timeouts, environ: Mapping[str, str], faults: Faults
) -> policy.Pool:
    return policy.Pool(
        name=name,
        engine=settings.engine,
        replicas=_replicas(name, settings, environ, faults),
        max_in_flight=settings.max_in_flight,
        queue_size=settings.queue_size,
        max_attempts=settings.max_attempts,
        breaker=policy.BreakerPolicy(**settings.breaker.model_dump()),
        timeouts=None if settings.timeouts is None else _merged(base, settings.timeouts),
    )


def _replicas(name: str, settings: PoolSettings, environ: Mapping[str, str], faults: Faults) -> tuple[Replica, ...]:
    try:
        api_key = resolve(settings.api_key or "", environ)
    except ValueError as error:
        faults.add(("pools", name, "api_key"), str(error))
        return ()
    return tuple(parse_replica(replica.url, api_key) for replica in settings.replicas)


def _merged(base: policy.Timeouts, overrides: TimeoutOverrides | None) -> policy.Timeouts:
    """Return the timeouts with those replaced that are overridden."""
    if overrides is None:
        return base
    # Whoever writes a first-byte deadline down means every answer, the default does not.
    whole = base.first_byte_for_whole or overrides.first_byte_s is not None
    return replace(base, **overrides.model_dump(exclude_none=True), first_byte_for_whole=whole)


def _models(draft: Draft, base: policy.Timeouts) -> dict[str, policy.Model]:
    pools = draft.settings.pools
    models = {}
    for name, settings in draft.settings.models.items():
        of_pool = pools[settings.pool].timeouts if settings.pool in pools else None
        models[name] = policy.Model(
            name=name,
            pool=settings.pool,
            upstream_model=settings.upstream_model or "",
            fallback=tuple(settings.fallback),
            timeouts=_merged(_merged(base, of_pool), settings.timeouts),
        )
    return models


def _tenants(
    draft: Draft, environ: Mapping[str, str], reachable: Address | None, faults: Faults
) -> dict[bytes, Tenant]:
    tenants: dict[bytes, Tenant] = {}
    owners: dict[bytes, str] = {}
    for place, settings in zip(draft.tenants, draft.settings.tenants, strict=True):
        tenant = _tenant(settings)
        for key_place, text in enumerate(settings.keys):
            loc: Loc = ("tenants", place, "keys", key_place)
            try:
                key = tenant_key(text, environ)
            except ValueError as error:
                faults.add(loc, str(error))
                continue
            if key.short and reachable:
                advice = "make one with `openssl rand -hex 32`, or listen on 127.0.0.1"
                faults.add(
                    loc, f"has fewer than {MIN_PLAIN} characters, and other machines reach {reachable}; {advice}"
                )
            owner = owners.setdefault(key.digest, f"tenants[{place}].keys[{key_place}]")
            if key.digest in tenants:
                faults.add(loc, f"is the same key as {owner}; give each tenant keys of its own")
            tenants.setdefault(key.digest, tenant)
    return tenants


def _tenant(settings: TenantSettings) -> Tenant:
    models = None if settings.models is None else frozenset(settings.models)
    return Tenant(name=settings.name, models=models, **settings.limits.model_dump())
