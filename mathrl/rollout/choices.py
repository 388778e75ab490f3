"""What the section rollout leaves open, as far as parameters and hardware decide it: engine, precision, lengths."""

from mathrl.core.gpus import Hardware
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model, PretrainedModel, Prompt
from mathrl.params.schema import Params


def longest_sequence(prompt: Prompt, max_tokens: int, *, continued: bool = False) -> int:
    """An upper bound of the tokens of a prompt and its response.

    A response prefix stands after the prompt and has at most a token per byte and one more; where responses are
    `continued`, the start of one follows.

    >>> longest_sequence(Prompt(max_tokens=512), 256), longest_sequence(Prompt(max_tokens=8, response_prefix="<a>"), 4)
    (768, 16)
    """
    prefix = len(prompt.response_prefix.encode()) + 1 if prompt.response_prefix else 0
    return prompt.max_tokens + prefix + max_tokens * (2 if continued else 1)


def stage_longest(params: Params, stage: str) -> int:
    """`longest_sequence` of what a stage samples: difficulty, rl, sample or evaluate."""
    section = getattr(params, stage)
    continuations = params.reward.judge.continuations if stage == "rl" else getattr(section, "continuations", 0)
    return longest_sequence(params.prompt, section.max_tokens, continued=continuations > 0)


def choose_engine(rollout: Rollout, model: Model, hardware: Hardware, vllm_installed: bool) -> Rollout:
    """The section with `engine: auto` resolved: vLLM for a pretrained model on a GPU where it is installed, else torch.

    A fresh model has a few million weights: vLLM would take longer to start than the torch engine to sample.
    """
    if rollout.engine != "auto":
        return rollout
    pretrained = isinstance(model.base, PretrainedModel)
    chosen = "vllm" if pretrained and hardware.is_gpu and vllm_installed else "torch"
    return rollout.model_copy(update={"engine": chosen})
