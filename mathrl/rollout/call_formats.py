"""What a tool call looks like in a response, and what follows it there.

python_block: the text of a response is

    ```python
    print(17 * 23)
    ```
    ```output
    391
    ```
    <answer>391</answer>

tool_call: a turn ends, by its end token, after `<tool_call>{"name": "python", "arguments": {"code": "…"}}</tool_call>`;
what the chat template writes for a message of the role tool follows, up to the start of the next assistant turn.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jinja2 import TemplateError

from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.types import FinishReason
from mathrl.params.turns import CallFormat

BLOCK = re.compile(r"```(?:python|py)[ \t]*\n((?:(?!```).)*)```\s*\Z", re.DOTALL)
FENCE, QUOTES = "```", "'''"
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
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


@dataclass(frozen=True)
class Asked:
    """A call that a turn asks for: code to run, or why it is none, which the model is told."""

    code: str
    mistake: str = ""


class Format(Protocol):
    """Calls in the text of a turn: the text that was sampled since the response began or a tool last answered."""

    stop: tuple[str, ...]
    reason: FinishReason  # how a turn with a call ends

    def calls(self, turn: str) -> list[Asked]:
        """The calls at the end of the turn, in their order."""
        ...

    def own_words(self, turn: str) -> str:
        """The turn without the calls at its end."""
        ...

    def answers(self, outputs: Sequence[str]) -> list[str]:
        """The text that is put into the response for each call's output."""
        ...


class PythonBlock:
    """See this module. Sampling stops at the line that closes a block."""

    stop: tuple[str, ...] = (f"{FENCE}\n",)
    reason: FinishReason = "stop_string"

    def calls(self, turn: str) -> list[Asked]:
        block = BLOCK.search(turn)
        return [Asked(block[1])] if block else []

    def own_words(self, turn: str) -> str:
        return BLOCK.sub("", turn)

    def answers(self, outputs: Sequence[str]) -> list[str]:
        """A fence in an output would close its block, so it is spelled otherwise."""
        return [f"{FENCE}output\n{output.replace(FENCE, QUOTES)}\n{FENCE}\n" for output in outputs]


class ToolCalls:
    """See this module. Sampling stops at the end of the turn."""

    stop: tuple[str, ...] = ()
    reason: FinishReason = "stop"

    def __init__(self, tokenizer: Any) -> None:
        """Raises UserError: the tokenizer has no chat template with tool messages."""
        self.tokenizer = tokenizer
        self.answers(["1", "2"])

    def calls(self, turn: str) -> list[Asked]:
        return [_asked(call) for call in CALL.findall(turn)]

    def own_words(self, turn: str) -> str:
        return CALL.sub("", turn)

    def answers(self, outputs: Sequence[str]) -> list[str]:
        """What the template writes from the end of the assistant's turn on; the end token itself was sampled."""
        marks = [f"7f1c40-{number}-" for number in range(len(outputs))]
        messages = [
            {"role": "user", "content": "1"},
            {"role": "assistant", "content": "7f1c40"},
            *({"role": "tool", "name": "python", "content": mark} for mark in marks),
        ]
        try:
            text = str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except (TemplateError, ValueError, AttributeError):
            text = ""
        text = text.partition("7f1c40")[2]
        if not all(mark in text for mark in marks):
            raise UserError(
                "rollout.turns.format is tool_call, but the model's chat template has no tool messages; set it to "
                "python_block, or take an instruction-tuned model whose template has them (Qwen 2.5, Qwen 3, Hermes)"
            )
        text = _after_end(text, self.tokenizer)
        parts = []
        for mark, output in zip(marks, outputs, strict=True):
            before, _, text = text.partition(mark)
            parts.append(before + output)
        return [*parts[:-1], parts[-1] + text]


def _after_end(text: str, tokenizer: Any) -> str:
    """The text after the added token that it begins with: the turn's end token, which the model has sampled."""
    ends = [token.content for token in tokenizer.added_tokens_decoder.values() if text.startswith(token.content)]
    return text[max(map(len, ends), default=0) :]


def _asked(call: str) -> Asked:
    wanted = 'write {"name": "python", "arguments": {"code": "…"}}'
    try:
        parsed = json.loads(call)
        name, code = parsed["name"], parsed["arguments"]["code"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        return Asked(call.strip(), f"error: this is no call ({type(error).__name__}: {error}); {wanted}")
    if name != "python" or not isinstance(code, str):
        return Asked(call.strip(), f"error: there is one tool, python, which takes code; {wanted}")
    return Asked(code)


def make_format(name: CallFormat, tokenizer: Any) -> Format:
    """Raises UserError: the tokenizer's chat template has no tool messages."""
    return PythonBlock() if name == "python_block" else ToolCalls(tokenizer)


def shown(output: str, limit: int, tokenizer: Any) -> str:
    """A tool's output as the model is given it: plain text that spells no added token, of at most `limit` tokens.

    Of longer output the beginning is kept, and a line says how much there was. Control characters, with the escapes of
    terminals, are left out.
    """
    text = CONTROL.sub("", encodable(output.replace("\r\n", "\n"))).rstrip()
    for token in {token.content for token in tokenizer.added_tokens_decoder.values() if len(token.content) > 1}:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    tokens = tokenizer.encode(text, add_special_tokens=False)
    if len(tokens) <= limit:
        return text
    head = tokenizer.decode(tokens[:limit]).rstrip("\ufffd").rstrip()
    return f"{head}\n[output cut: {limit:,} of {len(tokens):,} tokens]"
