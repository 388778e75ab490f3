"""What a chat template says of the end of a message and of tools: their description, and their answers."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError

from mathrl.core.errors import UserError

# What the chat template is told about the tool.
PYTHON = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs Python code and returns what it prints. Variables stay between calls.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code to run."}},
            "required": ["code"],
        },
    },
}


def tool_turn(tokenizer: Any, outputs: Sequence[str]) -> list[str]:
    """What the template writes after an assistant's turn whose calls have these outputs, one text per output.

    The last text ends where the next assistant's turn begins. The token that ends the first turn is left out: the model
    has sampled it.

    Example (Qwen 2.5): tool_turn(tokenizer, ["391"]) is one text, "\\n<|im_start|>user\\n<tool_response>\\n391\\n
        </tool_response><|im_end|>\\n<|im_start|>assistant\\n" without the line break of this page.

    Raises:
        UserError: the tokenizer has no chat template, or it has no tool messages.
    """
    marks = [f"{ANSWER}-{number}-" for number in range(len(outputs))]
    messages = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": ANSWER},
        *({"role": "tool", "name": "python", "content": mark} for mark in marks),
    ]
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except (TemplateError, ValueError):
        text = ""
    text = text.partition(ANSWER)[2]
    if not all(mark in text for mark in marks):
        raise UserError(
            "rollout.turns.format is tool_call, but the model's chat template has no tool messages; set it to "
            "python_block, or take an instruction-tuned model whose template has them (Qwen 2.5, Qwen 3, Hermes)"
        )
    ends = [token.content for token in tokenizer.added_tokens_decoder.values() if text.startswith(token.content)]
    text = text[max(map(len, ends), default=0) :]
    texts = []
    for mark, output in zip(marks, outputs, strict=True):
        before, _, text = text.partition(mark)
        texts.append(before + output)
    return [*texts[:-1], texts[-1] + text]


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
