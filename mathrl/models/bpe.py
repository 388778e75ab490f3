"""A byte-level BPE tokenizer, trained on the texts of the sft split."""

from collections.abc import Iterable, Iterator

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.types import Problem

# Qwen 2's: letters with the space before them, single digits, signs, white space. The same pattern, since transformers
# may rebuild the tokenizer of a qwen2 folder from its vocabulary and merges.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LEAST_COUNT = 2  # occurrences of a pair of tokens that becomes a token


def bpe_tokenizer(vocabulary: int, first: Iterable[str], marks: Iterable[str], texts: Iterable[str]) -> Tokenizer:
    """A tokenizer of exactly `vocabulary` tokens: `first`, the 256 bytes, merges learned from `texts`, `marks`.

    No text is unknown, since every byte is a token; decoding gives back every text. A digit is always a token of its
    own, so that numbers are written digit by digit. Equal texts give the same tokenizer to the byte.

    Raises:
        UserError: the texts have too few repeated pieces for so many tokens.
    """
    added = [AddedToken(mark, normalized=False, special=False) for mark in marks]
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(added),
        min_frequency=LEAST_COUNT,
        special_tokens=list(first),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(added)
    reached = tokenizer.get_vocab_size()
    if reached != vocabulary:
        raise UserError(
            f"model.base.tokenizer.vocabulary: the texts of the sft split give {reached} tokens, not {vocabulary}; "
            f"write {reached} or fewer, or give the sft split more problems"
        )
    return tokenizer


def texts_of(problems: Iterable[Problem]) -> Iterator[str]:
    """What the model will read and write of each problem: its question, worked solution and answers."""
    for problem in problems:
        written = (problem.question, problem.solution, problem.control.response, *problem.answers)
        yield from (encodable(text) for text in written if text)
