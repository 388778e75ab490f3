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

from mathrl.core.files import encodable
from mathrl.core.types import FinishReason
from mathrl.models.tool_messages import tool_turn
from mathrl.params.rollout import CallFormat

BLOCK = re.compile(r"```(?:python|py)[ \t]*\n((?:(?!```).)*)```\s*\Z", re.DOTALL)
FENCE, QUOTES = "```", "'''"
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
WANTED = 'write {"name": "python", "arguments": {"code": "..."}}'
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
        self.answers(["1", "2"])  # tried before anything is sampled

    def calls(self, turn: str) -> list[Asked]:
        return [_parse_call(call) for call in CALL.findall(turn)]

    def own_words(self, turn: str) -> str:
        return CALL.sub("", turn)

    def answers(self, outputs: Sequence[str]) -> list[str]:
        return tool_turn(self.tokenizer, outputs)


def _parse_call(call: str) -> Asked:
    try:
        parsed = json.loads(call)
        arguments = parsed.get("arguments") if isinstance(parsed, dict) else None
        if isinstance(arguments, str):  # as in OpenAI's interface: JSON within JSON
            arguments = json.loads(arguments)
    except (json.JSONDecodeError, RecursionError) as error:
        return Asked(call.strip(), f"error: the call is not JSON ({error}); {WANTED}")
    name = parsed.get("name") if isinstance(parsed, dict) else None
    code = arguments.get("code") if isinstance(arguments, dict) else None
    if name != "python":
        return Asked(call.strip(), f"error: there is one tool, python; {WANTED}")
    if not isinstance(code, str):
        return Asked(call.strip(), f"error: the arguments of python are an object with the text code; {WANTED}")
    return Asked(code)


OUTPUT = re.compile(r"(```(?:python|py)[ \t]*\n(?:(?!```).)*```[ \t]*\n)(```output\n(?:(?!```).)*```\n?)", re.DOTALL)


def pieces_of(text: str) -> list[tuple[str, bool]]:
    """A demonstration in pieces, and whether the model learns each: all but the outputs of its ```python blocks.

    >>> pieces_of("6*7:```python\\n6*7\\n```\\n```output\\n42\\n```\\nIt is 42.")
    [('6*7:```python\\n6*7\\n```\\n', True), ('```output\\n42\\n```\\n', False), ('It is 42.', True)]
    """
    pieces, start = [], 0
    for block in OUTPUT.finditer(text):
        pieces += [(text[start : block.end(1)], True), (block[2], False)]
        start = block.end()
    return [(piece, learned) for piece, learned in [*pieces, (text[start:], True)] if piece]


def make_format(name: CallFormat, tokenizer: Any) -> Format:
    """Raises UserError: the tokenizer's chat template has no tool messages."""
    return PythonBlock() if name == "python_block" else ToolCalls(tokenizer)


def show_output(output: str, limit: int, tokenizer: Any) -> str:
    """A tool's output as the model is given it: plain text that spells no added token, of at most `limit` tokens.

    Of longer output the beginning is kept, and a line says how much there was. Control characters, with the escapes of
    terminals, are left out.
    """
    text = CONTROL.sub("", encodable(output)).rstrip()
    # In their order: what is left of tokens within tokens is the same in every run. White space does no harm.
    for token in sorted({token.content.strip() for token in tokenizer.added_tokens_decoder.values()}):
        if len(token) > 1 and token in text:
            text = re.sub(f"{re.escape(token[0])}(?={re.escape(token[1:])})", r"\g<0> ", text)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    if len(tokens) <= limit:
        return text
    head = tokenizer.decode(tokens[:limit]).rstrip("\ufffd").rstrip()
    return f"{head}\n[output cut: {limit:,} of {len(tokens):,} tokens]"
