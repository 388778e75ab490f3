"""A score per token: critics and reward models, the policy's architecture with one output.

On disk it is a plain Hugging Face folder (token classification with one label). A score belongs to the row that
predicts a response token: entry n is V(s_n), the value before token n is known. For a score after the last token
(reward models), append any token to the response and take its entry.

Shapes: N response tokens (groups, responses, tokens in order); T packed tokens.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.out_of_memory import memory_part
from mathrl.models.allocator import keep_freed_memory
from mathrl.models.attention import packed_inputs
from mathrl.models.linear import BFloat16Linear, use_bfloat16_products
from mathrl.models.load import WEIGHTS_ADVICE, reason, resolve_folder, weights_options
from mathrl.models.logprobs import padded, plain_head, same_when_packed, takes_packed
from mathrl.models.lora import merged_state
from mathrl.models.norm import use_fast_norms
from mathrl.models.packing import Group, pack
from mathrl.models.transformers_import import AutoConfig, AutoModelForTokenClassification
from mathrl.params.run import Model


def make_scorer(policy: Any) -> Any:
    """A scorer with a copy of the policy's trunk and a head of zeros, so that every score is 0 at first.

    Raises:
        UserError: transformers has no token classification for this architecture.
    """
    config = copy.deepcopy(policy.config)
    config.num_labels, config.classifier_dropout = 1, 0.0
    with memory_part("weights of a critic or reward model", WEIGHTS_ADVICE):
        try:
            scorer = AutoModelForTokenClassification.from_config(config, dtype=torch.float32)
        except ValueError:
            raise UserError(
                f"a critic or reward model of architecture {config.model_type!r} cannot be made: "
                "transformers has no token classification for it; take another base model"
            ) from None
        scorer.base_model.load_state_dict(merged_state(policy.base_model))
        with torch.no_grad():
            for weight in scorer.score.parameters():
                weight.zero_()
        scorer = scorer.to(policy.device, policy.dtype).eval()
    use_fast_norms(scorer)
    if any(isinstance(module, BFloat16Linear) for module in policy.modules()):
        use_bfloat16_products(scorer.base_model)
    return scorer


def load_scorer(folder: Path | str, model: Model, device: torch.device | str, *, plain: bool = False) -> Any:
    """The scorer of a folder, float32 weights, in eval mode, its trunk computing in `model.precision`.

    `plain` is as in `load_model`.

    Raises:
        UserError: the folder holds another kind of model, more than one output, or no safetensors.
    """
    keep_freed_memory()
    path, options = resolve_folder(folder, model)
    with memory_part("weights", WEIGHTS_ADVICE):
        try:
            config = AutoConfig.from_pretrained(path, **options)
            architecture = (getattr(config, "architectures", None) or ["none"])[0]
            if config.num_labels != 1 or not architecture.endswith("ForTokenClassification"):
                raise ValueError(f"it is a {architecture} with {config.num_labels} labels")
            config.classifier_dropout = 0.0
            weights = weights_options(model, plain=plain)
            scorer = AutoModelForTokenClassification.from_pretrained(path, config=config, **weights, **options)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"{folder}: cannot be loaded as a model with one score per token ({reason(error)}); give the "
                "folder of a reward model or critic: token classification with one label"
            ) from None
        scorer = scorer.to(device).eval()
    if plain:
        return scorer
    use_fast_norms(scorer)
    if model.precision == "bfloat16":
        use_bfloat16_products(scorer.base_model)
    return scorer


def token_scores(scorer: Any, groups: Sequence[Group]) -> Tensor:
    """The score of every response token, float32 [N], with a gradient; packed where the model allows it."""
    return (_packed_scores if _takes_packed(scorer) else _padded_scores)(scorer, groups)


def prepare(model: Any) -> None:
    """Run now the trials of packing that a causal LM or a scorer runs once."""
    if model.can_generate():
        takes_packed(model)
        plain_head(model)
    else:
        _takes_packed(model)


def _packed_scores(scorer: Any, groups: Sequence[Group]) -> Tensor:
    batch = pack(groups, scorer.device)
    scores_T = scorer(
        input_ids=batch.input_ids_1T, position_ids=batch.position_ids_1T, layout=batch.layout, **packed_inputs(scorer)
    ).logits[0, :, 0]
    scores_N: Tensor = scores_T.float()[batch.rows_R][batch.row_of_N]
    return scores_N


def _padded_scores(scorer: Any, groups: Sequence[Group]) -> Tensor:
    ids_BL, real_BL, chosen = padded(groups, scorer.device)
    scores = scorer(input_ids=ids_BL, attention_mask=real_BL, use_cache=False).logits[:, :-1, 0]
    scores_N: Tensor = scores[chosen].float()
    return scores_N


@torch.no_grad()
def _takes_packed(scorer: Any) -> bool:
    if "_takes_packed" in scorer.__dict__:
        return bool(scorer.__dict__["_takes_packed"])
    # Random head weights for the trial: with zeros, any outputs agree.
    head = scorer.score.weight
    weights = head.clone()
    head.copy_(torch.randn(head.shape, generator=torch.Generator().manual_seed(0)))
    try:
        return same_when_packed(
            scorer, lambda groups: _padded_scores(scorer, groups), lambda groups: _packed_scores(scorer, groups)
        )
    finally:
        head.copy_(weights)
