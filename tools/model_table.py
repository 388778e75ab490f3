"""The tables of docs/reference/models.md: every causal language model of transformers, tiny and random, tried.

python tools/model_table.py              # all of them, about two minutes on one core; rewrites the page's tables
python tools/model_table.py llama mamba  # prints the rows of these
"""

import copy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError

from mathrl.models.base import character_tokenizer
from mathrl.models.linear import use_half_products
from mathrl.models.logprobs import architecture_trial, response_logprobs
from mathrl.models.packing import Group
from mathrl.models.prepared import compute_as
from mathrl.models.small_copy import small_config, small_copy
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM, GenerationConfig
from mathrl.models.trial import ERRORS, Trial, trial_groups
from mathrl.params.rollout import Rollout
from mathrl.params.run import FreshModel
from mathrl.rollout.engine import Sampling
from mathrl.rollout.torch_engine import TorchEngine

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "models.md"
# What the default configuration of a class leaves open or lets be of one kind only.
OPTIONS: dict[str, dict[str, Any]] = {
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 8},
    "xmod": {"default_language": "en_XX"},
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "bamba": {"attn_layer_indices": [9, 18]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16, "num_hidden_layers": 32},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4, "num_dense_layers": 1},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
}
ROPE = {"rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
ROPES: dict[str, dict[str, Any]] = {
    "linear": ROPE,
    "dynamic": ROPE,
    "yarn": ROPE,
    "llama3": {**ROPE, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {**ROPE, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tied head": ("qwen2", {"tie_word_embeddings": True}),
    "separate head": ("qwen2", {"tie_word_embeddings": False}),
    "window of 8 tokens in every layer": ("mistral", {"sliding_window": 8}),
    "windows beside full attention": ("gemma3_text", {}),
    "soft caps of scores and logits": ("gemma2", {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 1.0}),
    "experts": ("qwen3_moe", {"num_experts": 8, "num_experts_per_tok": 2}),
    "experts and shared experts": ("deepseek_v3", {}),
    "text of a vision-language model": ("gemma3", {}),
    "text of a hybrid vision-language model": ("qwen3_5", {}),
    "dropout of 0.1": ("gpt2", {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1}),
    **{
        f"rope {kind}, 5 times its original length": (
            "llama",
            {"max_position_embeddings": 16, "rope_parameters": {"rope_type": kind, **options}},
        )
        for kind, options in ROPES.items()
    },
}


def families() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tried_family(family: str, options: dict[str, Any]) -> tuple[Trial, str]:
    """The trial of a tiny model, and whether its greedy tokens are those of transformers' `generate`."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **copy.deepcopy(options))
    if getattr(config, "is_encoder_decoder", False):
        config.is_encoder_decoder = False  # the decoder alone; a folder with both parts is refused
    network = AutoModelForCausalLM.from_config(small_config(config)).eval()
    trial = architecture_trial(network)
    return trial, "" if trial.refused else greedy(network)


def greedy(network: Any) -> str:
    """The torch engine's greedy tokens against `generate`, with and without its cache."""
    tokenizer = character_tokenizer(FreshModel(alphabet="arithmetic"))
    model = small_copy(network)
    compute_as(model, None)
    prompts = [group.prompt for group in trial_groups()]
    end = tokenizer.eos_token_id
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=end)  # none of the family's own rules
    engine = TorchEngine(model, tokenizer, Rollout(max_sequences=16))
    sampled = [list(group[0].tokens) for group in engine.generate(prompts, Sampling(1, 0.0, 12), seed=0)]
    answers = []
    for cached in (True, False):
        try:
            expected = [_generated(model, prompt, cached) for prompt in prompts]
            answers.append("same" if expected == sampled else "differs")
        except ERRORS:
            answers.append("fails")
    return " / ".join(answers)


def _generated(model: Any, prompt: Any, cached: bool) -> list[int]:
    ids = torch.tensor([list(prompt)])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, use_cache=cached)
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def row(name: str, family: str, options: dict[str, Any]) -> str:
    try:
        trial, same = tried_family(family, options)
    except (*ERRORS, StrictDataclassError) as error:
        line = " ".join(str(error).split()).replace("|", "/")
        return f"| {name} | not tried | | | no tiny model of it: {line[:110]} |"
    if trial.refused:
        return f"| {name} | refused | | | {trial.refused} |"
    trains = "padded" if trial.not_packed else "packed"
    return f"| {name} | {trains} | {trial.sampling} | {same} | {trial.not_packed} |"


def rows(names: list[str]) -> Iterator[str]:
    for family in names:
        options = OPTIONS.get(family, {})
        line = row(f"`{family}`", family, options)
        yield line
        if "later tokens" in line and "is_decoder" in vars(AutoConfig.for_model(family)):
            yield row(f"`{family}`, is_decoder", family, {**options, "is_decoder": True})


def variant_rows() -> Iterator[str]:
    for name, (family, options) in VARIANTS.items():
        yield row(f"{name} (`{family}`)", family, options)


def routing_rows() -> Iterator[str]:
    """Log-probs of the torch engine against the trainer's, dense and with experts, which rounding may exchange."""
    tokenizer = character_tokenizer(FreshModel(alphabet="arithmetic"))
    prompts = [group.prompt for group in trial_groups()]
    for family, options in (("qwen3", {}), ("qwen3_moe", {"num_experts": 16, "num_experts_per_tok": 2})):
        for precision in ("float32", "bfloat16"):
            config = small_config(AutoConfig.for_model(family))
            for name, value in options.items():
                setattr(config, name, value)
            torch.manual_seed(0)
            network = AutoModelForCausalLM.from_config(config).eval()
            network.generation_config = GenerationConfig()
            if precision == "bfloat16":
                use_half_products(network)
            groups = TorchEngine(network, tokenizer, Rollout()).generate(prompts, Sampling(32, 1.0, 32), seed=0)
            packed = [Group(p, [c.tokens for c in group]) for p, group in zip(prompts, groups, strict=True)]
            sampled = torch.tensor([value for group in groups for c in group for value in c.logprobs])
            with torch.no_grad():
                gap = (response_logprobs(network, packed)[0] - sampled).abs()
            yield (
                f"| `{family}` | {precision} | {len(gap):,} | {gap.mean():.1e} | {gap.max():.1e} | "
                f"{int((gap > 0.01).sum())} |"
            )


def written(page: str, name: str, lines: list[str]) -> str:
    """The page with these lines between its marks `<!-- name -->` and `<!-- end -->`."""
    head, _, rest = page.partition(f"<!-- {name} -->\n")
    return f"{head}<!-- {name} -->\n" + "\n".join(lines) + "\n<!-- end -->" + rest.partition("<!-- end -->")[2]


def grouped(lines: list[str]) -> list[str]:
    """A row per result, with the models that share it.

    >>> grouped(["| `a` | packed | packed | same |  |", "| `b` | packed | packed | same |  |"])
    ['| packed | packed | same |  | `a`, `b` |']
    """
    models: dict[str, list[str]] = {}
    for line in lines:
        name, result = line.removeprefix("| ").split(" | ", 1)
        models.setdefault(result.removesuffix(" |"), []).append(name)
    return [
        f"| {result} | {', '.join(names)} |" for result, names in sorted(models.items(), key=lambda item: -len(item[1]))
    ]


ROUTING = ["| model | products in | tokens | mean difference | largest | above 0.01 |", "|---|---|---|---|---|---|"]
GROUPED = ["| trains | samples | greedy as `generate` with / without cache | why | models |", "|---|---|---|---|---|"]
HEADER = ["| model | trains | samples | greedy as `generate` with / without cache | why |", "|---|---|---|---|---|"]


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if sys.argv[1:]:
        print("\n".join(rows(sys.argv[1:])))
        return
    variants, table = list(variant_rows()), list(rows(families()))
    kinds = ("packed", "padded", "refused", "not tried")
    counts = ", ".join(f"{sum(line.split(' | ')[1] == kind for line in table)} {kind}" for kind in kinds)
    page = written(PAGE.read_text(encoding="utf-8"), "variants", [*HEADER, *variants])
    page = written(page, "routing", [*ROUTING, *routing_rows()])
    PAGE.write_text(written(page, "families", [f"{counts}.", "", *GROUPED, *grouped(table)]), encoding="utf-8")
    print(counts)


if __name__ == "__main__":
    main()
