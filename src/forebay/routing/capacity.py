"""How fast one replica computes prompts: learned from its first tokens, or declared. Pure.

The time to a first token is fitted as `base_s + tokens / prefill_tokens_per_s` over the prompt tokens that
were ahead of a call and its own (facts of one replica, never of a pool: replicas may differ). The fit is a
weighted least squares with exponential forgetting; weights fall with the size, so that a long prompt's
seconds do not drown the short ones' milliseconds.
"""

from forebay.policy import Capacity

FORGET = 0.99
MIN_SAMPLES = 12
# Below this relative spread of sizes a slope cannot be told from a base.
_MIN_SPREAD = 0.05
_WEIGHT_TOKENS = 256.0
# A single first token may be later than foreseen by this part, or by three times the usual error, before it is cut
# down to that: a hiccup teaches little, and a change of speed is still followed as the error grows with it.
_OUTLIER_RATIO = 0.5
_OUTLIER_ERRORS = 3.0
MAX_TOKENS_PER_S = 1e7

HOLD_S = 0.2
MIN_HOLD_S = 0.1
MAX_HOLD_S = 0.4
MIN_HOLD_TOKENS = 512.0
DRY_RATIO = 0.03

# A prompt that an engine computes for this long, a third of the time in which a first token is due, would make
# short ones late that stand behind it.
LONG_S = 0.5
# Shorter ones are never long: what a call has besides its prompt's length would then weigh as much.
MIN_LONG_TOKENS = 256
# Lanes follow a speed that is off by this factor, and nothing less: no prompt changes its lane with every first token.
_STEADY_FACTOR = 1.5


def long_from_tokens(before_tokens: int, tokens_per_s: float) -> int:
    """Return from how many uncached tokens on a prompt is long because of the time that it takes.

    Args:
        before_tokens: what this returned last; 0 for the first time.
        tokens_per_s: speed of the fastest replica; 0 while unknown.

    Returns:
        Tokens; 0 while no time can be told.
    """
    if tokens_per_s <= 0.0:
        return 0
    wanted_tokens = max(MIN_LONG_TOKENS, int(LONG_S * tokens_per_s))
    steady = before_tokens / _STEADY_FACTOR <= wanted_tokens <= before_tokens * _STEADY_FACTOR
    return before_tokens if steady else wanted_tokens


class Speed:
    """What is known of a replica's prefill.

    Attributes:
        base_s: seconds to a first token with no prompt to speak of.
        tokens_per_s: prompt tokens computed in a second; 0 while unknown.
        samples: first tokens seen.
        error_ratio: running mean of how far predictions were off.
    """

    __slots__ = ("_declared", "_quickest_tokens_per_s", "_w", "_wx", "_wxx", "_wxy", "_wy", "base_s", "error_ratio",
                 "samples", "tokens_per_s")  # fmt: skip

    def __init__(self, declared: Capacity) -> None:
        self._w = self._wx = self._wy = self._wxx = self._wxy = 0.0
        self.base_s = 0.0
        self.samples = 0
        self.error_ratio = 0.0
        self._declared = 0.0
        self._quickest_tokens_per_s = 0.0
        self.tokens_per_s = 0.0
        self.declare(declared)

    def declare(self, declared: Capacity) -> None:
        """Take what the configuration says; it goes before what is learned."""
        self._declared = declared.prefill_tokens_per_s or 0.0
        self._fit()

    @property
    def known(self) -> bool:
        """Whether it can predict."""
        return self.tokens_per_s > 0.0

    @property
    def likely_tokens_per_s(self) -> float:
        """What it is, or the best that was seen as long as there are too few first tokens to tell; 0 while unknown."""
        early = self.samples < MIN_SAMPLES and not self._declared
        return self._quickest_tokens_per_s if early else self.tokens_per_s

    def predict_s(self, tokens: float) -> float:
        """Return the seconds to a first token behind so many prompt tokens, its own included; 0 while unknown."""
        return self.base_s + tokens / self.tokens_per_s if self.tokens_per_s > 0.0 else 0.0

    def observe(self, tokens: float, taken_s: float) -> None:
        """Learn from one first token.

        Args:
            tokens: prompt tokens ahead of the call at its dispatch, and its own.
            taken_s: seconds from dispatch to the first token.
        """
        self.samples += 1
        if self.samples == 1:
            # An engine's first call may wait for what it compiles or loads.
            return
        if self.samples < MIN_SAMPLES:
            seen_tokens_per_s = tokens / max(taken_s, 1.0 / MAX_TOKENS_PER_S)
            self._quickest_tokens_per_s = max(self._quickest_tokens_per_s, seen_tokens_per_s)
        if self.samples > MIN_SAMPLES and self.tokens_per_s > 0.0:
            foreseen_s = max(1e-4, self.predict_s(tokens))
            most_s = foreseen_s * (1.0 + max(_OUTLIER_RATIO, _OUTLIER_ERRORS * self.error_ratio))
            self.error_ratio += 0.05 * (min(2.0, abs(taken_s / foreseen_s - 1.0)) - self.error_ratio)
            taken_s = min(taken_s, most_s)
        weight = 1.0 / (tokens + _WEIGHT_TOKENS)
        self._w = FORGET * self._w + weight
        self._wx = FORGET * self._wx + weight * tokens
        self._wy = FORGET * self._wy + weight * taken_s
        self._wxx = FORGET * self._wxx + weight * tokens * tokens
        self._wxy = FORGET * self._wxy + weight * tokens * taken_s
        self._fit()

    def _fit(self) -> None:
        if self.samples < MIN_SAMPLES:
            self.tokens_per_s = self._declared
            return
        mean_x, mean_y = self._wx / self._w, self._wy / self._w
        variance = self._wxx / self._w - mean_x * mean_x
        covariance = self._wxy / self._w - mean_x * mean_y
        if self._declared:
            slope = 1.0 / self._declared
        elif variance > _MIN_SPREAD * mean_x * mean_x and covariance > 0.0:
            slope = covariance / variance
        else:
            # First tokens that do not depend on what is ahead tell of no bottleneck: nothing is held back for one.
            self.tokens_per_s = self.base_s = 0.0
            return
        slope = max(slope, 1.0 / MAX_TOKENS_PER_S)
        self.tokens_per_s = 1.0 / slope
        self.base_s = max(0.0, mean_y - slope * mean_x)


class Depth:
    """How much unprefilled work an engine may hold: enough to never run dry, little enough to keep the order ours.

    An engine that ran out of prompts while calls waited here was held too short; each 64 dispatches the
    depth follows the share of such moments, so that holding costs at most about `DRY_RATIO` of throughput (T70).
    """

    __slots__ = ("_dispatched", "_dry", "hold_s")

    def __init__(self) -> None:
        self.hold_s = HOLD_S
        self._dispatched = 0
        self._dry = 0

    def tokens(self, speed: Speed) -> float:
        """Return the prompt tokens that may be under way, for a replica of this speed."""
        return max(MIN_HOLD_TOKENS, speed.tokens_per_s * (self.hold_s + speed.base_s))

    def dispatched(self) -> None:
        """Count a call that was sent."""
        self._dispatched += 1
        if self._dispatched >= 64:
            grows = self._dry > DRY_RATIO * self._dispatched
            self.hold_s = min(MAX_HOLD_S, self.hold_s * 1.25) if grows else max(MIN_HOLD_S, self.hold_s * 0.95)
            self._dispatched = self._dry = 0

    def ran_dry(self) -> None:
        """Count a moment at which the engine had no prompt left although calls waited."""
        self._dry += 1
