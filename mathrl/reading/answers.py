"""The answer of a solution's text: after ####, in the last \\boxed{}, in an <answer> tag, in "The answer is 12."."""

import re

from mathrl.grading.boxes import closing_brace

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_SENTENCE = re.compile(r"\banswer\s+is\s*:?\s*(\S.*?)\s*[.!]?\s*\Z", re.IGNORECASE)
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


def answer_sentence(text: str) -> str | None:
    r"""What the last line says that the answer is (MetaMath's and many Alpaca files' solutions end so).

    >>> answer_sentence("3+4=7.\nThe answer is: 7"), answer_sentence("So the final answer is $0.5$.")
    ('7', '$0.5$')
    >>> answer_sentence("The answer is 7, since 3+4=7.") is None
    True
    """
    *_, last = text.strip().split("\n")
    starts = [match.start() for match in re.finditer(r"\banswer\s+is\b", last, re.IGNORECASE)]
    match = _SENTENCE.search(last, starts[-1]) if starts else None
    if match is None or re.search(r",?\s(?:since|because|so|which)\s|[.!?]\s", match[1]):
        return None
    return match[1]
