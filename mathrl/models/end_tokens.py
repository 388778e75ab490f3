"""The tokens that end a response: those that sampling stops at, and the one that training puts after a response."""

from functools import lru_cache
from typing import Any

from jinja2 import TemplateError

ANSWER = "7f1c40"  # stands for an answer in a rendered conversation; no template contains it


@lru_cache(maxsize=4)
def turn_end(tokenizer: Any) -> int | None:
    """The token that the chat template writes after an assistant's answer; None without a template or such a token.

    It is often not the tokenizer's end token.

    Example: `<|im_end|>` for Qwen2.5's base models, whose end token is `<|endoftext|>`; `<end_of_turn>` for Gemma 3;
    `<|end|>` for Phi 3.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    conversation = [{"role": "user", "content": "1"}, {"role": "assistant", "content": ANSWER}]
    try:
        text = str(tokenizer.apply_chat_template(conversation, tokenize=False))
    except TemplateError:
        return None  # it takes other conversations only
    rest = text.rpartition(ANSWER)[2].lstrip()
    ids: list[int] = tokenizer.encode(rest, add_special_tokens=False) if rest else []
    return ids[0] if ids and ids[0] in tokenizer.added_tokens_decoder else None


def end_tokens(tokenizer: Any, generation_config: Any) -> list[int]:
    """Tokens that end a response: the tokenizer's end token, the chat template's, and those of generation_config."""
    listed = getattr(generation_config, "eos_token_id", None)
    ends = {tokenizer.eos_token_id, turn_end(tokenizer), *(listed if isinstance(listed, list) else [listed])} - {None}
    return sorted(int(end) for end in ends)
