"""Marks of tests that need an engine or a tracker; the package is looked for and not imported, which takes seconds."""

import importlib.util

import pytest

needs_deepspeed = pytest.mark.skipif(
    not importlib.util.find_spec("deepspeed"), reason="DeepSpeed is not installed: make engines"
)
needs_vllm = pytest.mark.skipif(not importlib.util.find_spec("vllm"), reason="vLLM is not installed: make engines")
needs_trackers = pytest.mark.skipif(
    not (importlib.util.find_spec("wandb") and importlib.util.find_spec("tensorboard")),
    reason="W&B and TensorBoard are not installed: pip install 'mathrl[trackers]'",
)
