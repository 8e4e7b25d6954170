"""From a request to a call: what is asked, of which model, by whom, what it is worth, and how much work it is."""

from collections.abc import Awaitable, Callable

from forebay.admission.outputs import MAX_OUTPUT_TOKENS
from forebay.admission.pointers import Body
from forebay.admission.rules import UNDECIDED, Decision, RuleFacts, RuleSet, retries_of
from forebay.admission.spending import price_of
from forebay.admission.terms import Reader, Terms, name_of, patience_s
from forebay.admission.work import Estimator, Kind
from forebay.domain import Spend, Tenant, Usage
from forebay.edge.body import Asked
from forebay.edge.prompt import choices, prompt_of
from forebay.engines.registry import ENGINES
from forebay.errors import Refused
from forebay.policy import EngineKind, Model, Policy
from forebay.traffic import Call, Prompt, Request, Work, changed
from forebay.wire.endpoints import Endpoint

# What engines may see of a client's headers: a closed list, so that no credential, no cookie and no header
# that steers an engine (priority, data-parallel rank, session) can pass.
FORWARDED = (b"accept", b"user-agent", b"traceparent", b"tracestate", b"anthropic-version", b"anthropic-beta")
_MODEL_OPTIONAL = ("tokenize", "detokenize")


Count = Callable[[Call, Asked, Policy], Awaitable[int | None]]
"""Has the tokens of a call's prompt counted; None when that fails."""


async def no_count(call: Call, asked: Asked, policy: Policy) -> None:
    """Leave every decision to the estimate."""


class Understanding:
    """Turns requests into calls; follows the policy.

    Args:
        count: asked where a rule's decision depends on the exact length of a prompt.

    Attributes:
        estimator: how much work calls are.
        rules: of the policy in force.
    """

    def __init__(self, count: Count = no_count) -> None:
        self._count = count
        self.estimator = Estimator()
        self.rules = RuleSet(())
        self._terms = Reader()

    def apply(self, policy: Policy) -> None:
        """Compile the rules of a new policy."""
        self.rules = RuleSet(policy.rules, self.rules)

    def call(
        self, request: Request, endpoint: Endpoint, asked: Asked, tenant: Tenant, policy: Policy, call_id: str
    ) -> Call:
        """Turn a request into a call: the model must exist, be allowed, and have the endpoint.

        A `doubtful` one is not decided on: it is for `exact` to do so.

        Raises:
            Refused: `missing_value`, `model_not_found`, `model_not_allowed`, `endpoint_not_supported`, `rule_rejected`.
        """
        model = _model_of(endpoint, asked, tenant, policy)
        headers = request.headers
        terms = self._terms.read(headers, asked.max_tokens, model, tenant)
        prompt = prompt_of(asked)
        work = self._work(tenant, model, asked, terms, prompt, endpoint)
        rule, doubtful = "", False
        if len(self.rules):
            decision = self._decide(request, endpoint, asked, (tenant, model, terms), prompt, work)
            rule, action = decision.rule, decision.action
            doubtful = decision.uncertain and asked.counted is None
            if rule:
                model = _rerouted(action.reroute, model, tenant, policy)
                terms = self._terms.read(headers, asked.max_tokens, model, tenant).within(action)
                work = self._work(tenant, model, asked, terms, prompt, endpoint)
        _must_have(endpoint, policy.pools[model.pool].engine)
        bound_tokens = _bound_tokens(endpoint, asked, terms, work)
        return Call(
            call_id,
            endpoint,
            model.name,
            asked.stream,
            asked.wants_usage,
            tenant,
            work.prompt_tokens,
            work.output_tokens,
            tuple([(key, headers[key]) for key in FORWARDED if key in headers]),
            request.received_s,
            request.received_s + patience_s(headers, asked.stream, model.timeouts.total_s),
            terms.value,
            work,
            0.0 if model.price is None else price_of(model.price, work.prompt_tokens, None, bound_tokens),
            terms.max_tokens if endpoint.streams else None,
            bound_tokens,
            terms.template,
            retries_of(headers),
            rule,
            doubtful,
            asked.claim,
            asked.shown,
        )

    async def exact(self, doubtful: Call, request: Request, asked: Asked, policy: Policy) -> Call:
        """Have a prompt counted, and turn its request into a call for good; without a count the estimate decides.

        Raises:
            Refused: as `call`.
        """
        counted = changed(asked, counted=await self._count(doubtful, asked, policy) or 0)
        return self.call(request, doubtful.endpoint, counted, doubtful.tenant, policy, doubtful.call_id)

    def learn(self, call: Call, model: Model, used: Usage, *, complete: bool) -> Spend:
        """Learn from what a call really took; return what it costs its tenant.

        Args:
            call: that has ended.
            model: that answered, or should have.
            used: tokens, counted by the engine unless `estimated`.
            complete: its answer came to its end.
        """
        if not used.estimated and model.name == call.model:
            self.estimator.learn(call.work, used, complete=complete)
        tokens = used.prompt_tokens + used.completion_tokens
        if model.price is None:
            return Spend(tokens)
        return Spend(tokens, price_of(model.price, used.prompt_tokens, used.cached_tokens, used.completion_tokens))

    def _work(
        self, tenant: Tenant, model: Model, asked: Asked, terms: Terms, prompt: Prompt, endpoint: Endpoint
    ) -> Work:
        kind = Kind(tenant.name, model.name, terms.template, asked.stream + 2 * (prompt.tools_bytes > 0))
        cap = terms.max_tokens
        return self.estimator.estimate(kind, prompt, _all_choices(asked, cap) if endpoint.streams else 0)

    def _decide(
        self,
        request: Request,
        endpoint: Endpoint,
        asked: Asked,
        whose: tuple[Tenant, Model, Terms],
        prompt: Prompt,
        work: Work,
    ) -> Decision:
        """Ask the rules.

        Raises:
            Refused: `rule_rejected`.
        """
        tenant, model, terms = whose
        facts = RuleFacts(
            asked.counted or work.prompt_tokens,
            asked.max_tokens,
            model.name,
            tenant.name,
            endpoint.name,
            asked.stream,
            terms.template or None,
            terms.user or None,
            terms.value,
            retries_of(request.headers),
            prompt.messages,
            prompt.images,
            prompt.tools_bytes > 0,
            exact=bool(asked.counted),
            body=Body(asked.members) if self.rules.reads_body else None,
        )
        decision = self.rules.decide(facts)
        if decision.uncertain and asked.counted is None:
            return UNDECIDED
        self.rules.count(decision)
        if decision.action.reject:
            raise Refused("rule_rejected", decision.action.reject)
        return decision


def request_id(request: Request) -> str:
    """Return the client's request id if it is 1-128 visible ASCII characters, else an empty text."""
    return name_of(request.headers.get(b"x-request-id", b""))


def _must_have(endpoint: Endpoint, kind: EngineKind) -> None:
    if endpoint.name not in ENGINES[kind].endpoints:
        raise Refused("endpoint_not_supported", f"the engine of this model ({kind}) has no {endpoint.path}")


def _all_choices(asked: Asked, cap_tokens: int | None) -> int | None:
    """Return the bound of all answers together: a call may ask for several."""
    return cap_tokens if cap_tokens is None or "n" not in asked.members.values else cap_tokens * choices(asked)


def _bound_tokens(endpoint: Endpoint, asked: Asked, terms: Terms, work: Work) -> int:
    """Return the output that limits must reserve: all that the call may get, else what its like got."""
    bound = _all_choices(asked, terms.max_tokens) if endpoint.streams else 0
    return work.output_tokens if bound is None else min(bound, MAX_OUTPUT_TOKENS)


def _rerouted(name: str, model: Model, tenant: Tenant, policy: Policy) -> Model:
    """Return the model that a rule names; the one asked for where that is gone, or is not the tenant's to use."""
    if tenant.models is not None and name not in tenant.models:
        return model
    return policy.models.get(name, model)


def _model_of(endpoint: Endpoint, asked: Asked, tenant: Tenant, policy: Policy) -> Model:
    name = asked.model
    if not name and endpoint.name in _MODEL_OPTIONAL and len(policy.models) == 1:
        name = next(iter(policy.models))
    if not name:
        raise Refused("missing_value", "model is required", param="model")
    model = policy.models.get(name)
    if model is None:
        raise Refused("model_not_found", f"there is no model {name[:128]!r}", param="model")
    if tenant.models is not None and name not in tenant.models:
        raise Refused("model_not_allowed", f"this key may not use the model {name[:128]!r}", param="model")
    return model
