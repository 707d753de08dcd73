"""Shapes of language models by the model's name, from the suite ``llm``."""

from __future__ import annotations

from ..bench.cases import LLM_TOKENS, LLM_WEIGHTS


def _short(origin: str) -> str:
    """``Llama 3 8B: gate and up`` of "Llama 3 8B, Mistral 7B and ...: gate and up projection"."""
    models, _, weight = origin.partition(": ")
    first = models.replace(" and ", ", ").split(", ")[0]
    weight = weight.partition(" (")[0].removesuffix(" projection")
    return f"{first}: {weight}"


WEIGHTS = {(N, K): _short(origin) for N, K, origin in LLM_WEIGHTS}
"""(N, K) of a weight -> the first model that has it, and which of its weights it is."""

TOKENS = dict(LLM_TOKENS)
"""M -> what so many rows are."""


def model_of(M: int, N: int, K: int) -> str:
    """Whose product it is, such as ``Llama 3 8B: down, decode, batch 16``; "" where nobody's."""
    weight, tokens = WEIGHTS.get((N, K)), TOKENS.get(M)
    return f"{weight}, {tokens}" if weight and tokens else ""
