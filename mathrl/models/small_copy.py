"""A model of the same class and kinds of layers with few, narrow layers: what is tried on it holds for the model."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch

from mathrl.models.prepared import Prepared, compute_as
from mathrl.models.transformers_import import PreTrainedConfig

VOCABULARY = 96
# The most that a field of a configuration has in a copy.
_MOST = {
    96: "decoder_vocab_size vocab_size_per_layer_input shape_vocab_size pronunciation_vocab_size "
    "encoder_hash_byte_group_vocab "
    "intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim dim_ff dff d_inner feed_forward_size ffn_hidden_size "
    "intermediate_size_mlp dense_intermediate_size moe_intermediate_size shared_expert_intermediate_size "
    "shared_intermediate_size expert_ffn_hidden_size moe_shared_expert_intermediate_size",
    64: "hidden_size d_model n_embd emb_dim hidden_size_global embedding_dim input_embedding_size embedding_size "
    "output_embedding_size lru_width word_embed_proj_dim backbone_hidden_size image_size",
    24: "q_lora_rank",
    16: "head_dim d_head attention_head_size dim_head kv_channels linear_key_head_dim linear_value_head_dim "
    "linear_head_dim v_head_dim swa_head_dim kv_lora_rank o_lora_rank index_head_dim mamba_d_head mamba_head_dim "
    "mamba_headdim state_size ssm_state_size mamba_d_state laurel_rank hidden_size_per_layer_input gated_norm_rank "
    "d_rel hc_lowrank router_hidden_size num_buckets patch_size",
    8: "qk_nope_head_dim qk_rope_head_dim rotary_dim time_step_rank mamba_dt_rank mamba_n_heads mamba_num_heads "
    # Short, so that the sequences of a trial are longer.
    "sliding_window sliding_window_size window_size local_attention attention_window_size keep_window_size "
    "attention_chunk_size index_topk mamba_chunk_size chunk_size index_block_size",
    4: "num_attention_heads n_head n_heads decoder_attention_heads encoder_attention_heads attention_heads num_heads "
    "num_decoder_attention_heads num_encoder_attention_heads swa_num_attention_heads linear_num_value_heads "
    "linear_num_heads num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num index_n_heads",
    2: "num_key_value_heads num_kv_heads kv_n_heads swa_num_key_value_heads linear_num_key_heads num_experts_per_tok "
    "num_experts_per_token moe_k moe_topk moe_top_k num_shared_experts n_shared_experts moe_num_shared_experts "
    "o_groups n_group n_groups mamba_n_groups mamba_ngroups num_mem_blocks attn_layer_period expert_layer_period",
    1: "topk_group first_k_dense_replace num_dense_layers moe_layer_start_index attn_layer_offset expert_layer_offset",
}
MOST = {name: most for most, names in _MOST.items() for name in names.split()}
LAYERS = (
    "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers num_encoder_layers "
    "num_layers_per_stack num_blocks"
).split()

# Lists of the places of layers, where other lists have an entry per layer.
PLACES = "attn_layer_indices full_attn_idxs moe_layers hybrid_layer_ids mlp_only_layers cross_attention_layers".split()


def small_config(config: Any) -> Any:
    """A copy with one layer of each kind, two at least, narrow, with short windows and 96 tokens."""
    made = copy.deepcopy(config)
    for part in _parts(made):
        _shrink(part)
    text = made.get_text_config()
    text.initializer_range = 0.1
    rope = getattr(text, "rope_parameters", None) or {}
    positions = vars(text).get(text.attribute_map.get("max_position_embeddings", "max_position_embeddings"))
    if isinstance(positions, int) and rope.get("rope_type", "default") != "dynamic":
        text.max_position_embeddings = max(positions, 256)
    return made


def two_layers(config: Any) -> Any:
    """A copy with two layers of full width, for code that comes with a model and names its fields in its own way."""
    made = copy.deepcopy(config)
    text = made.get_text_config()
    text.num_hidden_layers, text.vocab_size, text.initializer_range = min(2, text.num_hidden_layers), VOCABULARY, 0.1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:2]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(made, name, 0)
    return made


def _parts(config: Any) -> Iterator[Any]:
    """The configuration and those that it holds, such as text_config."""
    yield config
    for value in list(vars(config).values()):
        if isinstance(value, PreTrainedConfig):
            yield from _parts(value)


def _shrink(part: Any) -> None:
    fields = vars(part)
    width, heads, expand = (fields.get(name) for name in ("hidden_size", "num_attention_heads", "expand"))
    rotary_heads = fields.get("head_dim") is not None and fields.get("head_dim") == fields.get("qk_rope_head_dim")
    equal_heads = heads is not None and fields.get("num_key_value_heads") == heads
    _keep_a_layer_of_each_kind(part)
    for name, value in list(fields.items()):
        if name == "vocab_size":
            part.vocab_size = VOCABULARY
        elif name in MOST and type(value) is int:
            setattr(part, name, min(value, MOST[name]))
        elif name in MOST and isinstance(value, list):
            setattr(part, name, [min(entry, MOST[name]) for entry in value])
        elif name in ("pad_token_id", "bos_token_id", "eos_token_id") and value is not None:
            setattr(part, name, 0)
    # What follows from other fields.
    if equal_heads:
        part.num_key_value_heads = part.num_attention_heads
    if fields.get("qk_rope_head_dim") and fields.get("qk_nope_head_dim"):
        part.qk_head_dim = part.qk_nope_head_dim + part.qk_rope_head_dim
        part.head_dim = part.qk_rope_head_dim if rotary_heads else part.qk_head_dim
    if fields.get("attention_hidden_size") and width:
        part.attention_hidden_size = part.hidden_size * part.attention_hidden_size // width
        if fields.get("attention_head_dim"):
            part.attention_head_dim = part.attention_hidden_size // part.num_attention_heads
    if expand and fields.get("num_heads") and fields.get("head_dim"):  # Mamba 2
        part.num_heads = expand * part.hidden_size // part.head_dim
    if fields.get("mamba_d_ssm"):
        part.mamba_d_ssm = part.mamba_n_heads * part.mamba_d_head


def _keep_a_layer_of_each_kind(part: Any) -> None:
    """Cut every list with an entry per layer; a layer's kind is its entries in all of them."""
    fields = vars(part)
    layers = next((getattr(part, name) for name in LAYERS if isinstance(getattr(part, name, None), int)), 0)
    if layers <= 2:
        return
    sharing = layers - (fields.get("num_kv_shared_layers") or 0)  # these layers and later ones use others' keys
    places = {name: fields[name] for name in PLACES if isinstance(fields.get(name), (list, tuple))}
    lists = {
        name: value
        for name, value in fields.items()
        if isinstance(value, (list, tuple)) and len(value) == layers and name not in places
    }
    kinds = [
        str([place >= sharing, *(value[place] for value in lists.values()), *(place in v for v in places.values())])
        for place in range(layers)
    ]
    firsts = [kinds.index(kind) for kind in dict.fromkeys(kinds)]
    kept = sorted((firsts + [place for place in range(layers) if place not in firsts])[: max(2, len(firsts))])
    for name, value in lists.items():
        setattr(part, name, type(value)(value[place] for place in kept))
    for name, value in places.items():
        setattr(part, name, type(value)(new for new, place in enumerate(kept) if place in value))
    for name in LAYERS:
        if isinstance(fields.get(name), int):
            setattr(part, name, min(len(kept), fields[name]))
    if sharing < layers:
        part.num_kv_shared_layers = sum(place >= sharing for place in kept)


def small_copy(model: Any, shrink: Callable[[Any], Any] = small_config) -> Any:
    """A model of `model`'s class with the shrunken configuration, on the same device, in eval mode.

    Its weights are random, float32 and large, so that attention is uneven and logits are not near zero; none is exactly
    zero or one.

    Raises:
        TypeError, ValueError, KeyError, AttributeError, AssertionError, RuntimeError: the class cannot be made so.
    """
    device = model.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(0)
        made = type(model)(shrink(model.config)).float().eval()
        with torch.no_grad():
            for weight in made.parameters():
                weight.add_(torch.randn_like(weight), alpha=0.05)
    compute_as(made, Prepared(packed=False, kernel="cpu"))  # float32 products in blocks
    return made
