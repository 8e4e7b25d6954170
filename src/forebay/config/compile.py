"""Settings to `Policy`: keys are resolved and hashed, URLs taken apart, timeouts merged; pure."""

from collections.abc import Mapping

from msgspec.structs import replace

from forebay import policy
from forebay.config.addresses import Address, parse_replica
from forebay.config.credentials import MIN_PLAIN, resolve, tenant_key
from forebay.config.faults import Faults, Loc
from forebay.config.resume import compile_resume
from forebay.config.rules import compile_rules
from forebay.config.schema import (
    AdmissionSettings,
    ClassSettings,
    DegradeSettings,
    LadderSettings,
    PoolSettings,
    PriceSettings,
    TenantSettings,
    TimeoutOverrides,
)
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
    models = _models(draft, base)
    return policy.Policy(
        pools={name: _pool(name, pool, base, environ, faults) for name, pool in settings.pools.items()},
        models=models,
        tenants=_tenants(draft, environ, reachable, faults),
        limits=policy.Limits(**settings.limits.model_dump()),
        stream=policy.Stream(**settings.stream.model_dump()),
        shutdown=policy.Shutdown(**settings.shutdown.model_dump()),
        rules=compile_rules(settings.rules),
        cors_origins=frozenset(settings.cors.origins),
        trusted_proxies=tuple(dict.fromkeys(settings.trusted_proxies)),
        admission=compile_admission(settings.admission),
        single_flight=any(model.single_flight != "off" for model in models.values()),
        idempotency=policy.Idempotency(**settings.idempotency.model_dump()),
        kv_ratios=_three(settings.ladder.kv_ratios),
        resume=compile_resume(settings.resume, environ, faults),
    )


def compile_admission(settings: AdmissionSettings) -> policy.Admission:
    """Make the rules of admission: what is written goes before what the preset says."""
    latency = settings.preset == "latency"
    classes = {
        value: _class(getattr(settings.classes, value), preset)
        for value, preset in (policy.PROMPT if latency else policy.PATIENT).items()
    }
    reserve = settings.short_reserve
    return policy.Admission(
        preset=settings.preset,
        classes=classes,
        refuses_early=latency if settings.refuse_early is None else settings.refuse_early,
        long_prompt_tokens=settings.long_prompt_tokens,
        long_share_ratio=settings.long_share,
        short_reserve_ratio=(0.25 if latency else 0.0) if reserve is None else reserve,
    )


def _class(settings: ClassSettings, preset: policy.ClassPolicy) -> policy.ClassPolicy:
    written = {
        "target_s": settings.target_ms and settings.target_ms / 1000.0,
        "long_target_s": settings.long_target_ms and settings.long_target_ms / 1000.0,
        "max_wait_s": settings.max_wait_ms and settings.max_wait_ms / 1000.0,
        "share_ratio": settings.share,
    }
    return replace(preset, **{name: value for name, value in written.items() if value is not None})


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
        capacity=policy.Capacity(**settings.capacity.model_dump()),
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
            hygiene=settings.hygiene,
            default_output_tokens=settings.default_output_tokens,
            max_output_tokens=settings.max_output_tokens,
            price=_price(settings.price),
            degrade=_degrade(settings.degrade),
            single_flight=settings.single_flight or draft.settings.single_flight,
            ladder=_ladder(settings.ladder),
        )
    return models


def _price(settings: PriceSettings | None) -> policy.Price | None:
    if settings is None:
        return None
    return policy.Price(settings.input_per_million, settings.output_per_million, settings.cached_input_per_million)


def _degrade(settings: DegradeSettings | None) -> policy.Degrade | None:
    return None if settings is None else policy.Degrade(settings.model, settings.ttl_s)


def _ladder(settings: LadderSettings | None) -> policy.Ladder | None:
    if settings is None:
        return None
    return policy.Ladder(settings.fallback or "", settings.output_tokens, settings.history_tokens)


def _three(ratios: list[float]) -> tuple[float, float, float]:
    first, second, third = ratios
    return first, second, third


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
    classes = frozenset(settings.classes)
    if settings.default_class is not None:
        usual = settings.default_class
    else:
        usual = "medium" if "medium" in classes else "low" if "low" in classes else "high"
    return Tenant(
        name=settings.name,
        models=None if settings.models is None else frozenset(settings.models),
        classes=classes,
        default_class=usual,
        high_share_ratio=settings.high_share,
        **settings.limits.model_dump(),
    )
