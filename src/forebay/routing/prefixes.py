"""Which prompt beginnings a replica has probably cached: a bounded guess, corrected by what engines report.

A prompt's leading blocks are known by chained hashes, so a block matches only behind all before it. An
engine evicts by its own rules, which nobody outside sees; the guess is therefore weighted by the share of
foreseen hits that turned out true.
"""

BLOCK_TOKENS = 512
MAX_BLOCKS = 8192
# Before an engine has reported anything, half of a match is believed.
_FIRST_TRUST = 0.5


class Prefixes:
    """The blocks that one replica has seen, the longest unused forgotten first.

    Attributes:
        trust_ratio: share of foreseen cached tokens that engines confirmed.
    """

    __slots__ = ("_blocks", "trust_ratio")

    def __init__(self) -> None:
        self._blocks: dict[int, None] = {}
        self.trust_ratio = _FIRST_TRUST

    def cached_tokens(self, blocks: tuple[int, ...]) -> int:
        """Return how many tokens of a prompt are probably cached."""
        known = self._blocks
        matched = 0
        for block in blocks:
            if block not in known:
                break
            matched += 1
        return int(matched * BLOCK_TOKENS * self.trust_ratio)

    def add(self, blocks: tuple[int, ...]) -> None:
        """Note that a prompt was sent."""
        known = self._blocks
        for block in blocks:
            known.pop(block, None)
            known[block] = None
        while len(known) > MAX_BLOCKS:
            del known[next(iter(known))]

    def learn(self, foreseen_tokens: int, cached_tokens: int) -> None:
        """Compare a foreseen hit with what the engine reported."""
        if foreseen_tokens > 0 and self.trust_ratio > 0.0:
            matched = foreseen_tokens / self.trust_ratio
            hit_ratio = min(1.0, cached_tokens / matched)
            # Never quite zero, or nothing would be foreseen and nothing learned again.
            self.trust_ratio = max(0.05, self.trust_ratio + 0.1 * (hit_ratio - self.trust_ratio))
