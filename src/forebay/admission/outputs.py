"""How long answers are: a mean and a 90th percentile for each kind of call, from the last ones of its like."""

from array import array
from bisect import bisect_left, insort
from collections import OrderedDict

Key = tuple[object, ...]

PRIOR_TOKENS = 256
# No engine has a larger context; a strange count must not outweigh everything else.
MAX_OUTPUT_TOKENS = 1_048_576
MAX_KEYS = 4096
ENOUGH_SAMPLES = 20
WINDOW = 256
SPARING_STEP = 4


class Outputs:
    """Output lengths by key, from the closest key of a call to the widest.

    At most MAX_KEYS keys are kept, 2 KiB each; one more drops the key that has learned nothing for the longest time.
    """

    def __init__(self) -> None:
        self._windows: OrderedDict[Key, _Window] = OrderedDict()

    def likely(self, kin: tuple[Key, ...]) -> tuple[int, int]:
        """Return the mean and the 90th percentile, in tokens, of the first key with ENOUGH_SAMPLES.

        Args:
            kin: keys, the closest first; with none known both numbers are PRIOR_TOKENS.
        """
        for key in kin:
            window = self._windows.get(key)
            if window is not None and window.samples >= ENOUGH_SAMPLES:
                return window.mean(), window.p90()
        return PRIOR_TOKENS, PRIOR_TOKENS

    def learn(self, kin: tuple[Key, ...], output_tokens: int) -> None:
        """Take in the length of a complete answer, in tokens.

        Once the window of a key is full, each SPARING_STEP-th answer is enough for it, and for the wider keys behind
        it, which are there for calls whose closer keys are new.
        """
        tokens = min(max(output_tokens, 0), MAX_OUTPUT_TOKENS)
        windows = self._windows
        for key in kin:
            window = windows.get(key)
            if window is None:
                if len(windows) >= MAX_KEYS:
                    windows.popitem(last=False)
                windows[key] = window = _Window()
            else:
                windows.move_to_end(key)
            window.seen += 1
            if window.samples >= WINDOW and window.seen % SPARING_STEP:
                return
            window.add(tokens)


class _Window:
    """The last WINDOW lengths, in order of arrival and of size."""

    def __init__(self) -> None:
        self.samples = 0
        self.seen = 0
        self._arrived = array("I")
        self._ranked = array("I")
        self._total = 0

    def add(self, tokens: int) -> None:
        """Put a length in; the oldest one leaves a full window."""
        arrived, ranked = self._arrived, self._ranked
        at = self.samples % WINDOW
        if self.samples < WINDOW:
            arrived.append(tokens)
        else:
            oldest = arrived[at]
            arrived[at] = tokens
            del ranked[bisect_left(ranked, oldest)]
            self._total -= oldest
        insort(ranked, tokens)
        self._total += tokens
        self.samples += 1

    def mean(self) -> int:
        """Return the mean, rounded up."""
        return -(-self._total // len(self._ranked))

    def p90(self) -> int:
        """Return the length that the next answer does not exceed in nine of ten cases.

        Of n exchangeable lengths the k-th smallest covers the next one with probability k / (n + 1), whatever
        their distribution (order statistics; the split conformal bound).
        """
        count = len(self._ranked)
        return self._ranked[min(count, -(-9 * (count + 1) // 10)) - 1]
