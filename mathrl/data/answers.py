"""The answer of a solution's text: after ####, in the last \\boxed{}, in an <answer> tag."""

import re

from mathrl.core.braces import closing_brace

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BOXED = re.compile(r"\\(?:f|d)?box(?:ed)?\s*")


def after_hashes(text: str) -> str | None:
    """The answer by the rule of GSM8K, without thousands separators.

    >>> after_hashes("48/2 = <<48/2=24>>24 clips.\\n#### 1,024")
    '1024'
    """
    _, marks, tail = text.rpartition("####")
    if not marks:
        return None
    answer = tail.strip().split("\n")[0].strip()
    if re.fullmatch(r"[-+$]*\d{1,3}(,\d{3})+(\.\d+)?", answer):
        answer = answer.replace(",", "")
    return answer or None


def last_boxed(text: str) -> str | None:
    r"""The content of the last \boxed{…} whose braces balance (also \fbox{…} and `\boxed 5`).

    >>> last_boxed(r"so $x=\boxed{\frac{1}{2}}$.")
    '\\frac{1}{2}'
    """
    for match in reversed(list(_BOXED.finditer(text))):
        rest = text[match.end() :]
        if rest.startswith("{"):
            end = closing_brace(rest, 0)
            if end > 0:
                return rest[1:end].strip() or None
        elif bare := re.match(r"[^\s$.,;{}\\]+", rest):
            return bare.group()
    return None


def answer_tag(text: str) -> str | None:
    """The content of the last <answer> tag."""
    tags = _TAG.findall(text)
    return (tags[-1].strip() or None) if tags else None
