"""Import transformers without the optional packages that mathrl never uses through it.

`from transformers import PreTrainedModel` imports scikit-learn (for assisted generation) and with it scipy
and pandas, 2 of 4.4 CPU-seconds of every process of every stage; accelerate would bring deepspeed into each export.
transformers checks once whether a package can be found, so it is enough to hide the packages during its import. If
transformers was imported before, nothing is hidden.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

HIDDEN = ("sklearn", "scipy", "pandas", "accelerate", "deepspeed")


@contextmanager
def hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Make the packages unfindable within the block, by an entry None in sys.modules."""
    absent = [name for name in names if name not in sys.modules]
    for name in absent:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in absent:
            if sys.modules.get(name, True) is None:
                del sys.modules[name]


with hidden(HIDDEN if "transformers" not in sys.modules else ()):
    import transformers
    from transformers import AutoConfig as AutoConfig
    from transformers import AutoModelForCausalLM as AutoModelForCausalLM
    from transformers import AutoModelForTokenClassification as AutoModelForTokenClassification
    from transformers import AutoTokenizer as AutoTokenizer
    from transformers import GenerationConfig as GenerationConfig
    from transformers import PreTrainedConfig as PreTrainedConfig
    from transformers import PreTrainedModel as PreTrainedModel
    from transformers import PreTrainedTokenizerFast as PreTrainedTokenizerFast
    from transformers.core_model_loading import revert_weight_conversion as revert_weight_conversion
    from transformers.distributed import DistributedConfig as DistributedConfig
    from transformers.integrations.deepspeed import set_hf_deepspeed_config as set_hf_deepspeed_config
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config as unset_hf_deepspeed_config
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.masking_utils import sdpa_mask as sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as ALL_ATTENTION_FUNCTIONS
    from transformers.utils.hub import cached_file as cached_file

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
