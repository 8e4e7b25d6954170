"""How many tokens a prompt has for one model: a linear model of its features, calibrated by what engines count."""

from collections import deque
from collections.abc import Iterator
from math import sqrt
from operator import mul

from forebay.admission.texts import FEATURES

MAX_MODELS = 256
CAREFUL_SAMPLES = 500
SPARING_STEP = 64
# The median of so many errors is shown.
RECENT = 64

# Tokens for one of each feature, and how far a tokenizer may be from it (standard deviation). Means and spread
# of fits to six byte-pair tokenizers (Qwen, cl100k, o200k, DeepSeek, Claude 2, SmolLM2) over English, Chinese, Python,
# C, JSON and Markdown; what no tokenizer says (templates, pictures, sound, tools) is set by hand, and wide.
_PRIORS: dict[str, tuple[float, float]] = {
    # What a template adds is learned from the first few counts; until then limits reserve for the text alone.
    "constant": (0.0, 15.0),
    "messages": (0.0, 5.0),
    "lower": (0.106, 0.02),
    "upper": (0.27, 0.12),
    "digits": (1.33, 0.3),
    "digit_pairs": (-1.12, 0.5),
    "blanks": (0.23, 0.2),
    "indents": (-0.82, 0.6),
    "lines": (0.89, 0.2),
    "marks": (0.66, 0.1),
    "rows": (-2.5, 0.3),
    "words_after_blank": (0.38, 0.15),
    "words_after_mark": (0.62, 0.3),
    "words_after_line": (0.60, 0.25),
    "han": (0.8, 0.4),
    "kana": (0.9, 0.5),
    "two_byte": (0.5, 0.4),
    "other": (1.8, 1.0),
    "tools_bytes": (0.25, 0.1),
    "images": (800.0, 600.0),
    "audio_bytes": (0.0006, 0.0006),
    "ids": (1.0, 0.01),
}
_PRIOR = [_PRIORS[name][0] for name in FEATURES]
_VARIANCES = [_PRIORS[name][1] ** 2 for name in FEATURES]
_SIZE = len(FEATURES)
_IMAGES = FEATURES.index("images")
_AUDIO = FEATURES.index("audio_bytes")
# What the features leave open, as a part of the tokens: a prompt's own wording.
_NOISE = 0.05**2
# How much of its prior variance a weight regains with each sample; more when the model is off.
_FORGETTING = 1e-4
_FORGETTING_WHEN_OFF = 5e-3
# No single surprise counts for more than this many standard deviations, unless the model is off.
_MAX_STEP = 3.0
# An estimate is a miss when its error is this many times the usual one, but no error below the first bound is and
# every error above the second one. A model is off at this many more misses than hits: one absurd count is none.
_FAIR_TIMES = 3.0
_FAIR_RATIO = 0.1
_POOR_RATIO = 0.3
_OFF_MISSES = 5
_USUAL_SHARE = 0.002


class PromptTokens:
    """What has been learned of each model's tokenizer and template.

    The weights follow a Kalman filter in relative errors: recursive least squares whose forgetting is a drift
    added to the variances, so that a weight which nothing was seen of stays at its prior. At most MAX_MODELS
    models are kept; one more drops the model that has learned nothing for the longest time, which starts anew.
    """

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def estimate(self, model: str, features: tuple[float, ...], text_bytes: int) -> int:
        """Estimate the tokens of a prompt: at least 1, and for text and tools no more than they have bytes.

        Args:
            model: whose tokenizer and template it is for; one that was never learned has the priors.
            features: as `texts.features` counts them.
            text_bytes: of text and tools together.
        """
        known = self._models.get(model)
        return _tokens(_PRIOR if known is None else known.weights, features, text_bytes)

    def learn(self, model: str, features: tuple[float, ...], estimated_tokens: int, tokens: int) -> None:
        """Take in how many tokens an engine counted.

        The first CAREFUL_SAMPLES of a model move its weights, and so does every sample while it is off; else
        each SPARING_STEP-th does. The errors of all are noted.

        Args:
            model: whose tokenizer and template counted.
            features: of the prompt, as at its estimate.
            estimated_tokens: what `estimate` said.
            tokens: as counted, positive; anything else is ignored.
        """
        if tokens <= 0 or len(features) != _SIZE:
            return
        known = self._models.get(model)
        if known is None:
            known = self._begin(model)
        off = known.note(abs(estimated_tokens / tokens - 1.0))
        if off or known.samples <= CAREFUL_SAMPLES or known.samples % SPARING_STEP == 0:
            self._models[model] = self._models.pop(model)
            known.move(features, tokens, off)

    def report(self) -> Iterator[tuple[str, float, int]]:
        """Yield each model's name, the median relative error of its last RECENT estimates, and its samples."""
        for name, known in self._models.items():
            yield name, known.error_ratio(), known.samples

    def _begin(self, model: str) -> "_Model":
        if len(self._models) >= MAX_MODELS:
            del self._models[next(iter(self._models))]
        self._models[model] = begun = _Model()
        return begun


class _Model:
    """Weights of one model and their covariance."""

    def __init__(self) -> None:
        self.weights = list(_PRIOR)
        self.samples = 0
        self._covariance = _prior_covariance()
        self._errors: deque[float] = deque(maxlen=RECENT)
        self._usual_ratio = 0.0
        self._misses = 0

    def note(self, error_ratio: float) -> bool:
        """Note the error of an estimate; return whether errors have become much larger than they used to be."""
        self.samples += 1
        self._errors.append(error_ratio)
        bounded = min(error_ratio, 1.0)
        usual = self._usual_ratio
        self._usual_ratio = usual + (bounded - usual) * max(_USUAL_SHARE, 1.0 / self.samples)
        if error_ratio > min(max(_FAIR_RATIO, _FAIR_TIMES * usual), _POOR_RATIO):
            self._misses = min(self._misses + 1, 2 * _OFF_MISSES)
        elif self._misses:
            self._misses -= 1
        return self._misses >= _OFF_MISSES

    def error_ratio(self) -> float:
        """Return the median of the last errors; 0 without any."""
        errors = sorted(self._errors)
        return errors[len(errors) // 2] if errors else 0.0

    def move(self, features: tuple[float, ...], tokens: int, off: bool) -> None:
        """Move the weights towards what was counted (a Kalman filter's step, R. E. Kalman 1960)."""
        covariance = self._covariance
        scaled = [feature / tokens for feature in features]
        surprise = 1.0 - sum(map(mul, self.weights, scaled))
        forgetting = _FORGETTING
        if off:
            # Most likely the template has changed, by as many tokens as are missing.
            forgetting = _FORGETTING_WHEN_OFF
            covariance[0][0] += (surprise * tokens) ** 2
        shared = [sum(map(mul, row, scaled)) for row in covariance]
        variance = sum(map(mul, shared, scaled)) + _NOISE
        if variance < _NOISE / 2:  # rounding has broken the covariance
            self._covariance = _prior_covariance()
            return
        limit = 1e9 if off else _MAX_STEP * sqrt(variance)
        gain = max(-limit, min(limit, surprise)) / variance
        self.weights = [weight + gain * share for weight, share in zip(self.weights, shared, strict=True)]
        for at, share in enumerate(shared):
            if share:
                part = share / variance
                row = [old - part * other for old, other in zip(covariance[at], shared, strict=True)]
                covariance[at] = row
                if row[at] < _VARIANCES[at]:
                    row[at] += forgetting * _VARIANCES[at]


def _prior_covariance() -> list[list[float]]:
    return [[variance if at == row else 0.0 for at in range(_SIZE)] for row, variance in enumerate(_VARIANCES)]


def _tokens(weights: list[float], features: tuple[float, ...], text_bytes: int) -> int:
    template = weights[0] + weights[1] * features[1]
    if features[_IMAGES] or features[_AUDIO]:
        template += weights[_IMAGES] * features[_IMAGES] + weights[_AUDIO] * features[_AUDIO]
    text = -template
    for at in range(_SIZE):
        text += weights[at] * features[at]
    # Weights that were learned from other texts may not say nonsense about this one.
    return max(1, round(max(0.0, template) + min(max(0.0, text), text_bytes)))
