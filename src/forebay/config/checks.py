"""What must hold between the entries of a file: names, duplicates, circles, reach; pure."""

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from forebay.config.addresses import Address, parse_replica
from forebay.config.faults import Faults, Loc, quoted
from forebay.config.rules import check_rules
from forebay.config.validation import Draft

_ALL_ADDRESSES = frozenset({"0.0.0.0", "::"})


def check_entries(draft: Draft, faults: Faults) -> None:
    """Check that entries fit together.

    Args:
        draft: what is valid by itself.
        faults: gets what is not.
    """
    for section, names in (("pools", draft.pools), ("models", draft.models)):
        if section in draft.sound and not names:
            faults.add((section,), "has no entry; add at least one")
    _check_replicas(draft, faults)
    _check_models(draft, faults)
    _check_circles(draft, faults)
    _check_degrading(draft, faults)
    _check_tenants(draft, faults)
    check_rules(draft.settings.rules, draft.models, faults, draft.rules)


def check_addresses(draft: Draft, listen: Address, admin: Address, bound: Address | None, faults: Faults) -> None:
    """Check the two addresses against each other, and that nobody off the machine calls without a key.

    Args:
        draft: what is valid by itself.
        listen: of the data plane.
        admin: of the control plane.
        bound: where the data plane listens already, if it does.
        faults: gets what does not fit.
    """
    same_host = listen.host == admin.host or not _ALL_ADDRESSES.isdisjoint((listen.host, admin.host))
    if listen.port == admin.port != 0 and same_host and draft.sound >= {"listen", "admin"}:
        faults.add(("admin",), "is the address of `listen` too; choose another port")
    reachable = reachable_of(listen, bound)
    if reachable and not draft.settings.tenants and draft.sound >= {"listen", "tenants"}:
        text = f"other machines reach {reachable}, and there are no tenants; add tenants with keys, or use 127.0.0.1"
        faults.add(("listen",), text)


def reachable_of(listen: Address, bound: Address | None) -> Address | None:
    """Return the address that other machines can reach, if there is one: that in use counts as much as the next."""
    return next((address for address in (bound, listen) if address and not address.is_loopback), None)


def _check_replicas(draft: Draft, faults: Faults) -> None:
    for name, pool in draft.settings.pools.items():
        seen: dict[str, int] = {}
        for place, replica in enumerate(pool.replicas):
            first = seen.setdefault(parse_replica(replica.url).name, place)
            if first != place:
                loc: Loc = ("pools", name, "replicas", place, "url")
                faults.add(loc, f"is the same engine as replicas[{first}]; keep one")


def _check_models(draft: Draft, faults: Faults) -> None:
    for name, model in draft.settings.models.items():
        if model.pool not in draft.pools:
            faults.add(("models", name, "pool"), f"no pool is called {quoted(model.pool)}; {_known(draft.pools)}")
        for place, other in enumerate(model.fallback):
            loc: Loc = ("models", name, "fallback", place)
            if other not in draft.models:
                faults.add(loc, f"no model is called {quoted(other)}; {_known(draft.models)}")
            elif other in model.fallback[:place]:
                faults.add(loc, f"names {quoted(other)} twice; keep one")


def _check_circles(draft: Draft, faults: Faults) -> None:
    graph = {name: set(model.fallback) for name, model in draft.settings.models.items()}
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            # The circle is listed against the direction of the fallbacks, its first member once more at the end.
            circle = list(reversed(error.args[1]))
            start = min(range(len(circle) - 1), key=lambda place: faults.line_of(("models", circle[place])))
            ring = [*circle[start:-1], *circle[:start], circle[start]]
            way = " → ".join(quoted(name) for name in ring[:8]) + (" → …" if len(ring) > 8 else "")
            faults.add(("models", ring[0], "fallback"), f"leads in a circle: {way}; take one out")
            graph[ring[0]].discard(ring[1])
        else:
            return


def _check_degrading(draft: Draft, faults: Faults) -> None:
    for name, model in draft.settings.models.items():
        if model.degrade is not None:
            _check_elsewhere(draft, model.pool, model.degrade.model, ("models", name, "degrade", "model"), faults)
        if model.ladder is not None and model.ladder.fallback is not None:
            _check_elsewhere(draft, model.pool, model.ladder.fallback, ("models", name, "ladder", "fallback"), faults)


def _check_elsewhere(draft: Draft, pool: str, other: str, loc: Loc, faults: Faults) -> None:
    """Check that a model that is to spare a pool is there, and on another one."""
    if other not in draft.models:
        faults.add(loc, f"no model is called {quoted(other)}; {_known(draft.models)}")
    elif other in draft.settings.models and draft.settings.models[other].pool == pool:
        faults.add(loc, f"is on the pool {quoted(pool)} too; choose a model on another, or nobody is spared")


def _check_tenants(draft: Draft, faults: Faults) -> None:
    names: dict[str, int] = {}
    for place, tenant in zip(draft.tenants, draft.settings.tenants, strict=True):
        first = names.setdefault(tenant.name, place)
        if first != place:
            faults.add(("tenants", place, "name"), f"is the name of tenants[{first}] too; choose another")
        if tenant.default_class is not None and tenant.default_class not in tenant.classes:
            faults.add(
                ("tenants", place, "default_class"), "is not among `classes`; add it there or choose one of them"
            )
        priced = any(model.price is not None for model in draft.settings.models.values())
        if tenant.limits.money is not None and not priced and "models" in draft.sound:
            text = "no model has a price, so nothing would count; give models a `price`, or take it out"
            faults.add(("tenants", place, "limits", "money"), text)
        for model_place, model in enumerate(tenant.models or ()):
            if model not in draft.models:
                loc: Loc = ("tenants", place, "models", model_place)
                faults.add(loc, f"no model is called {quoted(model)}; {_known(draft.models)}")


def _known(names: Iterable[str]) -> str:
    """Say which names there are, the first few of them."""
    listed = sorted(names)
    if not listed:
        return "there is none"
    rest = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return f"use one of {', '.join(quoted(name) for name in listed[:5])}{rest}"
