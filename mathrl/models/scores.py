"""A score per token: critics and reward models, the policy's architecture with one output.

On disk it is a plain Hugging Face folder (token classification with one label). A score belongs to the row that
predicts a response token: entry n is V(s_n), the value before token n is known. For a score after the last token
(reward models), append any token to the response and take its entry.

Shapes: N response tokens (groups, responses, tokens in order); T packed tokens.
"""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from mathrl.core.errors import UserError, memory_part
from mathrl.models.attention import NAME, packed_inputs
from mathrl.models.context_parallel import ContextGroup, own_share, share_rows
from mathrl.models.device import Device, keep_freed_memory
from mathrl.models.dropout import disable_dropout
from mathrl.models.fsdp import divided_loads, is_divided, made_divided
from mathrl.models.kernels import attention_kernel, compute_dtype
from mathrl.models.load import (
    WEIGHTS_ADVICE,
    precision_of,
    resolve_folder,
    use_fast_layers,
    weights_options,
    while_loading,
)
from mathrl.models.logprobs import pad, prepare_language_model
from mathrl.models.lora import merged_state
from mathrl.models.packing import Group, pack
from mathrl.models.prepared import Prepared, compute_as, known_way
from mathrl.models.sharding import copy_shards, is_sharded, own_part
from mathrl.models.transformers_import import AutoConfig, AutoModelForTokenClassification
from mathrl.models.trial import scorer_takes_packed
from mathrl.params.run import Model


def make_scorer(policy: Any) -> Any:
    """A scorer with a copy of the policy's trunk and a head of zeros, so that every score is 0 at first.

    Of a sharded policy it is made within `sharded_loads`.

    Raises:
        UserError: transformers has no token classification with a plain linear head for this architecture.
    """
    config = copy.deepcopy(policy.config)
    config.num_labels, config.classifier_dropout = 1, 0.0
    with memory_part("weights of a critic or reward model", WEIGHTS_ADVICE):
        try:
            dtype = compute_dtype(policy) if is_sharded(policy) else torch.float32
            make = partial(AutoModelForTokenClassification.from_config, config, dtype=dtype)
            scorer = made_divided(make, policy) if is_divided(policy) else make()
            head = scorer.score  # GPT-2's is called otherwise, and has a dropout before it
        except (ValueError, AttributeError):
            raise UserError(
                f"a critic or reward model of architecture {config.model_type!r} cannot be made: transformers has no "
                "token classification with a plain linear head for it; use another base model"
            ) from None
        if is_sharded(policy):
            copy_shards(policy.base_model, scorer.base_model)
            scorer = scorer.to(policy.device)
        else:
            scorer.base_model.load_state_dict(merged_state(policy.base_model))
            scorer = scorer.to(policy.device, policy.dtype)
        for weight in head.parameters():
            own_part(weight).zero_()
        scorer.eval()
    disable_dropout(scorer)
    use_fast_layers(scorer, scorer.base_model, Model(precision=precision_of(policy)), plain=is_sharded(policy))
    return scorer


def load_scorer(
    folder: Path | str, model: Model, device: Device, *, plain: bool = False, mesh: DeviceMesh | None = None
) -> Any:
    """The scorer of a folder in eval mode, its trunk computing in `model.precision`: weights as in `load_model`.

    Raises:
        UserError: the folder holds another kind of model, more than one output, or no safetensors.
    """
    keep_freed_memory()
    path, options = resolve_folder(folder, model)
    advice = "the folder of a reward model or critic: token classification with one label"
    with memory_part("weights", WEIGHTS_ADVICE), while_loading(folder, "a model with one score per token", advice):
        config = AutoConfig.from_pretrained(path, **options)
        architecture = (getattr(config, "architectures", None) or ["none"])[0]
        if config.num_labels != 1 or not architecture.endswith("ForTokenClassification"):
            raise ValueError(f"it is a {architecture} with {config.num_labels} labels")
        config.classifier_dropout = 0.0
        weights = weights_options(model, device, plain=plain)
        with divided_loads(mesh) as division:
            scorer = AutoModelForTokenClassification.from_pretrained(
                path, config=config, **weights, **division, **options
            )
        scorer = scorer.to(device).eval()
    disable_dropout(scorer)
    use_fast_layers(scorer, scorer.base_model, model, plain=plain)
    return scorer


def token_scores(scorer: Any, groups: Sequence[Group]) -> Tensor:
    """The score of every response token, float32 [N], with a gradient; packed where the model allows it."""
    return (_packed_scores if prepare_scorer(scorer).packed else _padded_scores)(scorer, groups)


def prepare(model: Any, context: ContextGroup | None = None) -> None:
    """Find out how a causal LM or a scorer is computed; let the ranks of `context` share its rows.

    Raises:
        UserError: they cannot share the rows of this model.
    """
    way = prepare_language_model(model) if model.can_generate() else prepare_scorer(model)
    if context is not None:
        share_rows(model, context, way.packed)


def _packed_scores(scorer: Any, groups: Sequence[Group]) -> Tensor:
    share = own_share(scorer, pack(groups, scorer.device, attention_kernel(scorer)))
    batch = share.batch
    scores_T = scorer(
        input_ids=batch.input_ids_1T, position_ids=batch.position_ids_1T, layout=batch.layout, **packed_inputs(scorer)
    ).logits[0, :, 0]
    return share.join(scores_T.float()[batch.rows_R][batch.row_of_N])


def _padded_scores(scorer: Any, groups: Sequence[Group]) -> Tensor:
    ids_BL, real_BL, chosen = pad(groups, scorer.device)
    scores = scorer(input_ids=ids_BL, attention_mask=real_BL, use_cache=False).logits[:, :-1, 0]
    scores_N: Tensor = scores[chosen].float()
    return scores_N


def prepare_scorer(scorer: Any) -> Prepared:
    """How a model with a score per token is computed; found out now unless it is known."""
    way = known_way(scorer)
    if way is None:
        way = Prepared(scorer_takes_packed(scorer, _padded_scores, _packed_scores))
        if way.packed:
            scorer.config._attn_implementation = NAME
        compute_as(scorer, way)
    return way
