"""The base model that SFT starts from: random weights with a tokenizer of its own, or a pretrained model."""

import string
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from mathrl.core.errors import UserError
from mathrl.core.files import encodable, write_json, written_aside
from mathrl.core.hashing import derive_seed, digest_model
from mathrl.core.types import Problem, read_problems
from mathrl.models.export import export_model
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
from mathrl.params.run import FreshModel, Model, PretrainedModel

REFERENCE = "reference.json"
PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"
ALPHABETS = {
    "ascii": "\n" + "".join(char for char in string.printable if char.isprintable()),
    "arithmetic": string.digits + "+-*/=;,.() \n",
}


def make_base(model: Model, folder: Path | str, seed: int, data: Sequence[Path] = ()) -> None:
    """Write the base model's folder.

    A fresh model has random weights from `seed` and is a plain Hugging Face folder; a BPE tokenizer is trained on the
    problems of the files `data`. For a pretrained model only a reference is written (its weights are not copied), which
    `load_model` and `load_tokenizer` follow.

    Raises:
        UserError: a BPE tokenizer without texts to train it on, or with too few for its vocabulary.
    """
    folder = Path(folder)
    if isinstance(model.base, PretrainedModel):
        with written_aside(folder) as aside:
            aside.mkdir(parents=True)
            reference = model.base.model_dump(mode="json", exclude={"type"})
            if (local := Path(model.base.path)).is_dir():  # what follows is made again when its files change
                reference["files"] = digest_model(local)
            write_json(aside / REFERENCE, reference)
        return
    tokenizer, about = fresh_tokenizer(model.base, data)
    network = fresh_network(model.base, tokenizer, seed)
    count = sum(weight.numel() for weight in network.parameters())
    export_model(
        network,
        tokenizer,
        folder,
        f"# A {model.base.architecture} model of random weights\n\n{count:,} parameters, seed {seed}, "
        f"{about}. Made by mathrl; untrained.\n",
    )


def fresh_tokenizer(base: FreshModel, data: Sequence[Path]) -> tuple[Any, str]:
    """The tokenizer of a fresh model, and what it is in words; a BPE one is trained on the problems of `data`.

    Raises:
        UserError: a BPE tokenizer without texts to train it on, or with too few for its vocabulary.
    """
    if base.tokenizer is None:
        tokenizer = character_tokenizer(base)
        return tokenizer, f"a character tokenizer of {len(tokenizer)} tokens"
    if not data:
        raise UserError(
            "model.base.tokenizer: a BPE tokenizer is trained on the sft split, and there is none here; set "
            "model.base.tokenizer to null"
        )
    problems = [problem for file in data for problem in read_problems(file)]
    first = (PAD, END, UNKNOWN)
    trained = bpe_tokenizer(base.tokenizer.vocabulary, first, base.marks, texts_of(problems))
    about = f"a byte-level BPE tokenizer of {base.tokenizer.vocabulary:,} tokens, trained on {len(problems):,} problems"
    return _with_names(trained, base), about


def character_tokenizer(base: FreshModel) -> Any:
    """One token per character of the alphabet and per mark of `base.marks`, and padding, end, unknown.

    >>> tokenizer = character_tokenizer(FreshModel(alphabet="arithmetic"))
    >>> tokenizer.decode(tokenizer.encode("<think>7+5=12</think>"))
    '<think>7+5=12</think>'
    """
    # Byte-level byte-pair encoding without merges splits a text into characters. Byte-level, since
    # transformers reads every tokenizer of a qwen2 folder as byte-level, whatever its files say.
    byte_level = {" ": "Ġ", "\n": "Ċ"}
    tokens = [PAD, END, UNKNOWN, *(byte_level.get(char, char) for char in ALPHABETS[base.alphabet])]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[], unk_token=UNKNOWN)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in base.marks])
    return _with_names(tokenizer, base)


def _with_names(tokenizer: Tokenizer, base: FreshModel) -> Any:
    """The tokenizer for transformers, which is told which tokens are padding, end and unknown."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
        model_max_length=base.max_positions,
    )


def fresh_config(base: FreshModel, tokenizer: Any) -> Any:
    """The Hugging Face configuration of a model of random weights, its head tied to the embedding.

    The vocabulary of a BPE tokenizer is known before it is trained: any tokenizer of the same first tokens will do.
    """
    return AutoConfig.for_model(
        base.architecture,
        vocab_size=base.tokenizer.vocabulary if base.tokenizer else len(tokenizer),
        hidden_size=base.hidden_size,
        intermediate_size=base.intermediate_size,
        num_hidden_layers=base.layers,
        num_attention_heads=base.heads,
        num_key_value_heads=base.kv_heads,
        max_position_embeddings=base.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def fresh_network(base: FreshModel, tokenizer: Any, seed: int) -> Any:
    """A causal LM of random weights."""
    config = fresh_config(base, tokenizer)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "base model"))
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


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
