"""How long prompts and responses may be, from the tokens of the data."""

from math import ceil

from mathrl.params.final_values import SHORTEST

LONGEST_PROMPT = 2048  # in tokens, unless more than a twentieth of the prompts are longer
LONGEST = {"cpu": 512, "cuda": 4096}  # of a response, in tokens, unless the solutions are longer
CHAT, PLAIN = 512, 256  # of a response where the data have no solutions: of an instruct model and of another
MORE = 1.5  # times nearly all solutions


def prompt_tokens(longest: float, p95: float, positions: int | None) -> int:
    """The longest prompt, at most LONGEST_PROMPT or the 95th percentile, and half of the model's positions.

    >>> prompt_tokens(longest=300, p95=210, positions=4096), prompt_tokens(longest=9000, p95=3000, positions=4096)
    (320, 2048)
    """
    most = max(LONGEST_PROMPT, rounded(p95))
    tokens = min(max(SHORTEST, rounded(longest)), most)
    return tokens if positions is None else min(tokens, positions // 2)


def response_tokens(solutions_p95: float | None, *, chat: bool, longest: int) -> int:
    """Room for a response: half as much again as nearly all solutions take; without solutions what is usual.

    `longest` limits the half, never the solutions: `mathrl.data.lengths` refuses a length that cuts them off.

    >>> response_tokens(300, chat=False, longest=4096), response_tokens(None, chat=True, longest=4096)
    (480, 512)
    """
    usual = CHAT if chat else PLAIN
    if solutions_p95 is None:
        return usual
    return max(rounded(solutions_p95), min(longest, max(usual if chat else SHORTEST, rounded(MORE * solutions_p95))))


def rounded(tokens: float) -> int:
    """Up to the next multiple of 32."""
    return 32 * max(1, ceil(tokens / 32))
