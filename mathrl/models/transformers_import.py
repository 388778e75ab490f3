"""Import transformers without the optional packages that mathrl never uses through it.

`from transformers import PreTrainedModel` imports scikit-learn (for assisted generation) and with it scipy
and pandas, 2 of 4.4 CPU-seconds of every process of every stage; accelerate would bring deepspeed into each export.
transformers checks once whether a package can be found, so it is enough to hide the packages during its import. If
transformers was imported before, nothing is hidden.

Nor does it read the metadata of every installed distribution (see `Distributions`), half a second more, or look for
garbage among the objects that it makes.
"""

import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from mathrl.core.environment import without_collections

HIDDEN = ("sklearn", "scipy", "pandas", "accelerate", "deepspeed")


@contextmanager
def hide_packages(names: tuple[str, ...]) -> Iterator[None]:
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


_every_distribution = cache(importlib.metadata.packages_distributions)


class Distributions(dict[str, list[str]]):
    """What `importlib.metadata.packages_distributions` returns, of which an entry is made when it is asked for.

    A package whose distribution has its name, as torch's has, needs no search through the others. flash_attn has
    several, and transformers asks for each.
    """

    def get(self, package: str, default: Any = None) -> Any:
        try:
            alone = not package.startswith("flash_attn") and importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            alone = False
        return [alone.name] if alone else _every_distribution().get(package, default)


@contextmanager
def distributions_on_request() -> Iterator[None]:
    """Within the block `importlib.metadata.packages_distributions` reads no distribution yet."""
    read_all = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = Distributions  # type: ignore[assignment]
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = read_all


with (
    hide_packages(HIDDEN if "transformers" not in sys.modules else ()),
    distributions_on_request(),
    without_collections(),
):
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
