"""Counts of a traffic: what `forebay traffic` shows of the journal's lines, in bounded memory.

Lengths are counted in buckets of powers of two, so that no value is kept; percentiles are the upper bounds of
their buckets, at most twice the true value.
"""

from typing import Final

from msgspec import Struct, field

from forebay.domain import Outcome
from forebay.recording.lines import CloseLine

BUCKETS: Final = 25  # the last holds all from 2^23 tokens on
THRESHOLDS: Final = (2_048, 8_192, 16_384)
OTHERS: Final = "(others)"
NONE: Final = "-"
_MAX_GROUPS = 200
_MAX_TEMPLATES = 1_000
_MAX_CODES = 100
_NEAR_RATIO = 0.2


class Lengths(Struct):
    """How long one kind of text is.

    Attributes:
        calls: whose length is known.
        tokens: of all of them.
        buckets: calls by length: bucket 0 holds length 0, bucket n lengths from 2^(n-1) to 2^n - 1.
    """

    calls: int = 0
    tokens: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, tokens: int) -> None:
        """Count one text."""
        self.calls += 1
        self.tokens += tokens
        self.buckets[min(max(0, tokens).bit_length(), BUCKETS - 1)] += 1

    def percentile(self, ratio: float) -> int | None:
        """Return the longest length of the bucket in which this part of all calls is reached; None without calls.

        Args:
            ratio: 0 < ratio <= 1.
        """
        seen = 0
        for number, calls in enumerate(self.buckets):
            seen += calls
            if calls and seen >= ratio * self.calls:
                return (1 << number) - 1
        return None


class Above(Struct):
    """Calls whose input is longer than some tokens, and their input tokens."""

    threshold_tokens: int
    calls: int = 0
    tokens: int = 0


class Group(Struct):
    """The calls of one tenant to one model."""

    tenant: str
    model: str
    calls: int = 0
    input: Lengths = field(default_factory=Lengths)
    output: Lengths = field(default_factory=Lengths)


class Template(Struct):
    """The calls of one prompt template."""

    name: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class Hour(Struct):
    """The calls that ended in one hour of the day (UTC), all days together."""

    hour: int
    calls: int = 0
    tokens: int = 0


class Guesses(Struct):
    """Our estimates beside what the engine counted.

    Attributes:
        calls: that have both.
        near: of them, those whose estimate is within 20 % of the count.
    """

    calls: int = 0
    estimated_tokens: int = 0
    counted_tokens: int = 0
    near: int = 0

    def add(self, estimated_tokens: int, counted_tokens: int) -> None:
        """Compare one call."""
        self.calls += 1
        self.estimated_tokens += estimated_tokens
        self.counted_tokens += counted_tokens
        self.near += abs(estimated_tokens - counted_tokens) <= _NEAR_RATIO * counted_tokens


class Traffic(Struct):
    """What was counted; tokens are those of the journal, the engine's own where it counted.

    Attributes:
        calls: that ended, refused ones included.
        first_s: seconds since the Unix epoch; None without calls.
        last_s: the same of the latest.
        estimated: calls whose tokens the engine did not count.
        cache_calls: calls for which the engine says how much of the prompt it had in its cache.
        cache_input_tokens: input of those.
        cached_tokens: of that, what was in the cache.
        retried: calls that the client says are a retry.
        tried_again: calls that Forebay tried on more than one replica, or more than once.
        continued: answers that went on from another replica.
    """

    calls: int = 0
    first_s: float | None = None
    last_s: float | None = None
    estimated: int = 0
    input: Lengths = field(default_factory=Lengths)
    output: Lengths = field(default_factory=Lengths)
    above: list[Above] = field(default_factory=lambda: [Above(tokens) for tokens in THRESHOLDS])
    groups: dict[str, Group] = field(default_factory=dict)
    templates: dict[str, Template] = field(default_factory=dict)
    hours: list[Hour] = field(default_factory=lambda: [Hour(hour) for hour in range(24)])
    outcomes: dict[str, int] = field(default_factory=lambda: {outcome.value: 0 for outcome in Outcome})
    codes: dict[str, int] = field(default_factory=dict)
    cache_calls: int = 0
    cache_input_tokens: int = 0
    cached_tokens: int = 0
    retried: int = 0
    tried_again: int = 0
    continued: int = 0
    input_guesses: Guesses = field(default_factory=Guesses)
    output_guesses: Guesses = field(default_factory=Guesses)

    def add(self, line: CloseLine) -> None:
        """Count one call. Beyond 200 pairs of tenant and model, or 1,000 templates, new ones are `(others)`."""
        self.calls += 1
        self.first_s = line.ts if self.first_s is None else min(self.first_s, line.ts)
        self.last_s = line.ts if self.last_s is None else max(self.last_s, line.ts)
        self.outcomes[line.outcome.value] += 1
        if line.error_code is not None:
            code = line.error_code if line.error_code in self.codes or len(self.codes) < _MAX_CODES else OTHERS
            self.codes[code] = self.codes.get(code, 0) + 1
        self.retried += line.retry_count > 0
        self.tried_again += len(line.attempts) > 1
        self.continued += line.continued > 0
        hour = self.hours[int(line.ts // 3600) % 24]
        hour.calls += 1
        hour.tokens += (line.input_length or 0) + (line.output_length or 0)
        self._add_lengths(line)
        self._add_template(line)
        self._add_usage(line)

    def _add_lengths(self, line: CloseLine) -> None:
        group = self._group(line.tenant or NONE, line.model or NONE)
        group.calls += 1
        if line.resumed_from is not None:
            # The rest of an answer that another call began tells no length, of input or of output.
            return
        if line.input_length is not None:
            self.input.add(line.input_length)
            group.input.add(line.input_length)
            for above in self.above:
                if line.input_length > above.threshold_tokens:
                    above.calls += 1
                    above.tokens += line.input_length
        if line.output_length is not None:
            self.output.add(line.output_length)
            group.output.add(line.output_length)

    def _group(self, tenant: str, model: str) -> Group:
        key = f"{tenant} {model}"
        if key not in self.groups and len(self.groups) >= _MAX_GROUPS:
            key, tenant, model = OTHERS, OTHERS, OTHERS
        return self.groups.setdefault(key, Group(tenant, model))

    def _add_template(self, line: CloseLine) -> None:
        name = line.prompt_template_id
        if name is None:
            return
        if name not in self.templates and len(self.templates) >= _MAX_TEMPLATES:
            name = OTHERS
        template = self.templates.setdefault(name, Template(name))
        template.calls += 1
        template.input_tokens += line.input_length or 0
        template.output_tokens += line.output_length or 0

    def _add_usage(self, line: CloseLine) -> None:
        if line.usage_estimated:
            self.estimated += 1
            return
        if line.cached_tokens is not None and line.input_length is not None:
            self.cache_calls += 1
            self.cache_input_tokens += line.input_length
            self.cached_tokens += line.cached_tokens
        if line.resumed_from is not None:
            return
        if line.input_estimate_tokens is not None and line.input_length:
            self.input_guesses.add(line.input_estimate_tokens, line.input_length)
        if line.output_estimate_tokens is not None and line.output_length:
            self.output_guesses.add(line.output_estimate_tokens, line.output_length)
