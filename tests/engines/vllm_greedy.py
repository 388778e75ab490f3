"""vLLM alone on a model folder, token ids in and out; for vllm_rl.py, whose process has opened engines before."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def greedy(model: Path, prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """The most probable 24 tokens after each prompt, with their log-probs."""
    from vllm import LLM, SamplingParams  # seconds, and mathrl sets what it reads at its import

    engine = LLM(
        model=str(model),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=16,
        seed=0,
        logprobs_mode="processed_logprobs",
    )
    sampling = SamplingParams(temperature=0, max_tokens=24, logprobs=0)
    rows = []
    requests = [{"prompt_token_ids": list(ids)} for ids in prompts]
    for prompt, answer in zip(prompts, engine.generate(requests, sampling), strict=True):
        best = answer.outputs[0]
        logprobs = [step[token].logprob for token, step in zip(best.token_ids, best.logprobs, strict=True)]
        rows.append({"prompt": prompt, "tokens": list(best.token_ids), "logprobs": logprobs})
    return rows
