"""Prefill budget: the prompt tokens of a step that must be short because other models wait."""

from __future__ import annotations

SHORT_STEP = 0.05
"""Seconds that a short step should take for its prompt tokens."""
INITIAL_TOKENS = 64
"""Prompt tokens of a short step before any step is measured."""
MIN_TOKENS = 64
"""Fewer tokens are hardly faster: every step reads all weights."""
MIN_PREFILL_SHARE = 0.1
"""Prefill takes at least this share of a step's time; the fixed cost varies from step to step."""


class PrefillBudget:
    """Estimates how many prompt tokens fit into a short step from the time of earlier steps."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.tokens = min(INITIAL_TOKENS, max_tokens)
        """Prompt tokens of the next short step."""
        self.fixed_cost = 0.0
        """Seconds of the last step without prompt tokens."""

    def measure(self, prefill_tokens: int, seconds: float) -> None:
        """Update the estimate from one step; its fixed cost does not shrink with fewer tokens."""
        if not prefill_tokens:
            self.fixed_cost = seconds
        elif seconds > 0:
            prefill_seconds = max(seconds - self.fixed_cost, MIN_PREFILL_SHARE * seconds)
            fitting = min(prefill_tokens * SHORT_STEP / prefill_seconds, self.max_tokens)
            self.tokens = max(MIN_TOKENS, int(fitting))
