"""Strings at which the torch engine stops a sequence: found in the text of its last tokens.

Shapes: B sequences; L tokens of each; R sequences that are asked about.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class StopStrings:
    """Finds the sequences whose newest token completes one of `strings`.

    Only tokens that spell the last character of a string can complete it; the others are not decoded.
    """

    def __init__(self, strings: Sequence[str], tokenizer: Any) -> None:
        self.strings, self.tokenizer = strings, tokenizer
        self.longest = max(map(len, strings))
        lasts = {string[-1] for string in strings}
        pieces = tokenizer.batch_decode([[token] for token in range(len(tokenizer))], skip_special_tokens=True)
        self.closing = torch.tensor([number for number, piece in enumerate(pieces) if lasts & set(piece)])

    def completed(self, tokens_BL: Tensor, rows_R: Tensor, column: int) -> Tensor:
        """Those of the rows whose token in `column` completes a string."""
        closing_R = torch.isin(tokens_BL[rows_R, column], self.closing.to(tokens_BL.device))
        first = max(0, column + 1 - self.longest)  # a token has a character of the string or more
        candidates = rows_R[closing_R]
        if not len(candidates):
            return candidates
        texts = self.tokenizer.batch_decode(tokens_BL[candidates, first : column + 1].tolist())
        ends_here = [any(string in text for string in self.strings) for text in texts]
        return candidates[torch.tensor(ends_here, dtype=torch.bool, device=candidates.device)]
