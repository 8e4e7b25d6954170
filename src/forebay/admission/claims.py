"""How much of a tenant's traffic may be `high` while calls wait: the share of its tokens, over a minute. Pure.

A header costs nothing, so a claim alone must not let anyone pass (T34). What is over the share is treated
as `medium`, and the answer says so.
"""

import math

from forebay.domain import Value
from forebay.traffic import Call

TIME_S = 60.0
MAX_TENANTS = 2048
# A tenant's first few thousand tokens may all be high: a share of nothing is nothing.
ALLOWANCE_TOKENS = 4096.0


class _Account:
    __slots__ = ("at_s", "high", "total")

    def __init__(self) -> None:
        self.at_s = 0.0
        self.high = 0.0
        self.total = 0.0


class Claims:
    """The tokens that tenants have claimed as `high`, forgotten with a time constant of a minute.

    Attributes:
        lowered: calls that were treated as `medium` for it.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self.lowered = 0

    def grant(self, call: Call, now_s: float) -> Value:
        """Return what a call is treated as, and count it.

        Args:
            call: as its tenant claims it.
            now_s: monotonic seconds.
        """
        tokens = float(call.prompt_tokens + call.work.likely_output_tokens)
        account = self._account(call.tenant.name)
        kept = math.exp((account.at_s - now_s) / TIME_S)
        account.at_s = now_s
        account.total = account.total * kept + tokens
        account.high *= kept
        if call.value != "high":
            return call.value
        allowed = max(ALLOWANCE_TOKENS, call.tenant.high_share_ratio * account.total)
        if call.tenant.high_share_ratio < 1.0 and account.high + tokens > allowed:
            self.lowered += 1
            return "medium"
        account.high += tokens
        return "high"

    def _account(self, tenant: str) -> _Account:
        account = self._accounts.pop(tenant, None)
        if account is None:
            account = _Account()
            if len(self._accounts) >= MAX_TENANTS:
                # Whoever has called least lately begins anew.
                del self._accounts[next(iter(self._accounts))]
        self._accounts[tenant] = account
        return account
