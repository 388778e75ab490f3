"""Marks of tests that need an engine."""

import importlib.util

import pytest

needs_deepspeed = pytest.mark.skipif(
    not importlib.util.find_spec("deepspeed"), reason="DeepSpeed is not installed: make engines"
)
needs_vllm = pytest.mark.skipif(not importlib.util.find_spec("vllm"), reason="vLLM is not installed: make engines")
