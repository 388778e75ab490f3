"""Tiny models of the families that people train most, with tokenizers of their classes, special tokens and templates.

Nothing is downloaded: a tokenizer is trained on a few sentences, and a template has the structure of its family's, not
its text. What matters for training is the families' own: which token ends a turn and which one the tokenizer calls its
end, whether tokenizer, template or both write the start token, what opens or skips thinking, and the class that
tokenizer_config.json names.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM

TEXT = (
    "Natalia sold 48/2 = 24 clips in May. How many clips did she sell altogether? The answer is 72.\n\n"
    "user assistant system model think 7+5-3=9 What is 12 minus 3? Please reason step by step.\n"
)
SPLIT = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The answer of the last turn alone keeps its reasoning; without any, it has an empty block.
QWEN3 = (
    "{%- for m in messages %}{%- set text = m.content %}"
    "{%- if m.role == 'assistant' and '</think>' in text %}{%- set text = text.split('</think>')[-1] %}{%- endif %}"
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}"
    "{{ text }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
QWEN35 = QWEN3.replace("</think>\n\n{% endif %}{% endif %}", "</think>\n\n{% else %}<think>\n{% endif %}{% endif %}")
LLAMA3 = (
    "{{- bos_token }}{%- if strftime_now is defined %}{%- set date = strftime_now('%d %b %Y') %}"
    "{%- else %}{%- set date = '26 Jul 2024' %}{%- endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ date }}\n\n<|eot_id|>"
    "{%- for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{%- endfor %}{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{%- set first = '' %}{%- if messages[0].role == 'system' %}{%- set first = messages[0].content + "
    "'\n\n' %}{%- set messages = messages[1:] %}{%- endif %}{%- for m in messages %}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first }}{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}{%- if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{%- elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{%- else %}{{ raise_exception('Only user and assistant roles are supported') }}{%- endif %}{%- endfor %}"
)
PHI3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
PHI4 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
OLMO2 = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% if not loop.last %}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}\n<|assistant|>\n{% endif %}"
)
SMOLLM3 = (
    "{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{%- endif %}<|im_start|>system\n"
    "Today Date: {{ strftime_now('%d %B %Y') }}\nReasoning Mode: {{ '/think' if enable_thinking else '/no_think' }}"
    "<|im_end|>\n{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if not enable_thinking %}<think>\n\n</think>\n{% endif %}{% endif %}"
)
BEGIN, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
DEEPSEEK = (
    "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{%- elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}{{ eos_token }}"
    "{%- else %}{{ m.content }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """One family as its folders are on the hub.

    `turn_end` ends an assistant's turn in the template, `eos` is what the tokenizer calls its end token, and
    `stops` are those of generation_config.json. `starts`: the tokenizer writes the start token by itself.
    """

    architecture: str
    tokenizer_class: str
    template: str
    special: tuple[str, ...]
    eos: str
    turn_end: str
    stops: tuple[str, ...]
    bos: str | None = None
    starts: bool = False
    pieces: str = "bytes"  # or "metaspace" (Llama 2: a space before the text), "spaces" (Gemma)
    marks: tuple[str, ...] = ()  # added tokens that are not special
    config: dict[str, Any] = field(default_factory=dict)


CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
THINK = ("<think>", "</think>")
HEADERS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
)
FAMILIES = {
    "qwen2.5": Family("qwen2", "Qwen2Tokenizer", CHATML, CHATML_TOKENS, "<|im_end|>", "<|im_end|>", CHATML_TOKENS[::2]),
    "qwen2.5-base": Family(
        "qwen2", "Qwen2Tokenizer", CHATML, CHATML_TOKENS, "<|endoftext|>", "<|im_end|>", ("<|endoftext|>",)
    ),
    "qwen3": Family(
        "qwen3", "Qwen2Tokenizer", QWEN3, CHATML_TOKENS, "<|im_end|>", "<|im_end|>", CHATML_TOKENS[::2], marks=THINK
    ),
    "qwen3.5": Family(
        "qwen3_5_text",
        "Qwen2Tokenizer",
        QWEN35,
        CHATML_TOKENS,
        "<|im_end|>",
        "<|im_end|>",
        CHATML_TOKENS[::2],
        marks=THINK,
        config={
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
    "llama3": Family(
        "llama",
        "PreTrainedTokenizerFast",
        LLAMA3,
        HEADERS,
        "<|eot_id|>",
        "<|eot_id|>",
        ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
        bos="<|begin_of_text|>",
        starts=True,
    ),
    "gemma3": Family(
        "gemma3_text",
        "GemmaTokenizer",
        GEMMA,
        ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        "<end_of_turn>",
        ("<eos>", "<end_of_turn>"),
        bos="<bos>",
        starts=True,
        pieces="spaces",
        config={"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mistral": Family(
        "mistral",
        "LlamaTokenizer",
        MISTRAL,
        ("<s>", "</s>", "[INST]", "[/INST]"),
        "</s>",
        "</s>",
        ("</s>",),
        bos="<s>",
        starts=True,
        pieces="metaspace",
        config={"sliding_window": None},
    ),
    "phi3": Family(
        "phi3",
        "LlamaTokenizer",
        PHI3,
        ("<s>", "</s>", "<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>"),
        "<|endoftext|>",
        "<|end|>",
        ("<|endoftext|>", "<|assistant|>", "<|end|>"),
        bos="<s>",
        pieces="metaspace",
        config={"sliding_window": 16},
    ),
    "phi4": Family(
        "phi3",
        "GPT2Tokenizer",
        PHI4,
        (*CHATML_TOKENS, "<|im_sep|>"),
        "<|im_end|>",
        "<|im_end|>",
        CHATML_TOKENS[::2],
        bos="<|endoftext|>",
    ),
    "olmo2": Family(
        "olmo2",
        "GPT2Tokenizer",
        OLMO2,
        CHATML_TOKENS,
        "<|endoftext|>",
        "<|endoftext|>",
        ("<|endoftext|>",),
        bos="<|endoftext|>",
    ),
    "olmo3": Family(
        "olmo3",
        "GPT2Tokenizer",
        CHATML,
        CHATML_TOKENS,
        "<|endoftext|>",
        "<|im_end|>",
        ("<|im_end|>", "<|endoftext|>"),
        bos="<|endoftext|>",
        config={"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "smollm3": Family(
        "smollm3",
        "PreTrainedTokenizerFast",
        SMOLLM3,
        ("<|begin_of_text|>", "<|end_of_text|>", *CHATML_TOKENS[1:]),
        "<|im_end|>",
        "<|im_end|>",
        ("<|im_end|>",),
        marks=THINK,
    ),
    "deepseek-qwen": Family(
        "qwen2",
        "LlamaTokenizerFast",
        DEEPSEEK,
        (END, BEGIN),
        END,
        END,
        (END,),
        bos=BEGIN,
        starts=True,
        marks=(*THINK, "<｜User｜>", "<｜Assistant｜>"),
    ),
}
FAMILIES["deepseek-llama"] = replace(FAMILIES["deepseek-qwen"], architecture="llama")


def written_tokenizer(family: Family) -> Tokenizer:
    """The tokenizer as the family's tokenizer.json describes it."""
    if family.pieces == "bytes":
        tokenizer = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(SPLIT, "isolated")
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        alphabet = []
        parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        if family.pieces == "metaspace":
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
            parts.append(decoders.Strip(" ", 1, 0))
        else:
            tokenizer.normalizer = normalizers.Replace(" ", "▁")
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
        tokenizer.decoder = decoders.Sequence(parts)
    first = [] if family.pieces == "bytes" else ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=first, initial_alphabet=alphabet, show_progress=False, max_token_length=8
    )
    tokenizer.train_from_iterator(TEXT.splitlines(keepends=True), trainer)
    if first:  # bytes are for the fallback, not spellings that a text may contain
        state = json.loads(tokenizer.to_str())
        state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] == "<unk>"]
        tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.marks])
    if family.starts and family.bos:
        start = tokenizer.token_to_id(family.bos)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", pair=f"{family.bos} $A {family.bos} $B:1", special_tokens=[(family.bos, start)]
        )
    return tokenizer


def make_family(name: str, folder: Path, *, weights: bool = True) -> Path:
    """Write a model folder of the family: two layers of width 64, random weights."""
    family = FAMILIES[name]
    tokenizer = written_tokenizer(family)
    ids = {text: tokenizer.token_to_id(text) for text in family.special}
    config = AutoConfig.for_model(
        family.architecture,
        **{
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "max_position_embeddings": 512,
            "bos_token_id": ids.get(family.bos or ""),
            "eos_token_id": ids[family.eos],
            "pad_token_id": ids[family.eos],
            **family.config,
        },
    )
    folder.mkdir(parents=True)
    if weights:
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.data.mul_(4)  # sharper, so that a wrong position or mask shows
        model.save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": family.tokenizer_class,
        "eos_token": family.eos,
        "bos_token": family.bos,
        "add_bos_token": family.starts,
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
    } | ({"unk_token": "<unk>"} if family.pieces != "bytes" else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(family.template)
    # Settings of a chat, as Qwen's and Llama's folders have them: training must not follow them.
    chat = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 2, "repetition_penalty": 1.3}
    stops = [ids[text] for text in family.stops]
    (folder / "generation_config.json").write_text(json.dumps({**chat, "eos_token_id": stops}))
    return folder
