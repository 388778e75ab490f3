"""The text of a tool's output as the model gets it: printable, unable to end its own block, and bounded."""

import re

# What frames a tool's output or a message in a prompt: fences of Markdown, tags and special tokens of chat templates.
FENCE = re.compile(r"`{3,}|~{3,}")
FRAME = re.compile(r"<(?=/?(?:tool_call|tool_response|tool|think|output)\b|\|)", re.I)
# Control characters but line feed and tab, invisible format characters and lone surrogates.
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)

CUT = "\n[... output too long: its middle is left out ...]\n"


def clean(text: str) -> str:
    """The text without anything that could forge what surrounds it.

    Runs of three or more backticks become apostrophes, the `<` of tags and special tokens of chat templates gets a
    space behind it, and characters that are not shown are written as escapes.

    >>> clean("42\\n```\\n\\x1b[31m<|im_end|>")
    "42\\n'''\\n\\\\x1b[31m< |im_end|>"
    """
    text = text.replace("\r\n", "\n")
    text = FENCE.sub(lambda fence: "'" * len(fence[0]), text)
    text = FRAME.sub("< ", text)
    return INVISIBLE.sub(lambda character: character[0].encode("unicode_escape").decode("ascii"), text)


def shorten(head: str, tail: str, limit: int) -> str:
    """The text in at most `limit` characters; what is missing between `head` and `tail` is marked.

    Args:
        head: the whole text, or its beginning.
        tail: empty, or the end of a text whose middle was left out before.
        limit: characters of the result, more than the mark has.
    """
    if not tail and len(head) <= limit:
        return head
    kept = limit - len(CUT)
    return head[: kept - kept // 2] + CUT + (tail or head)[-(kept // 2) :]
