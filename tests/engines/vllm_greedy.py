"""Run by test_engines.py in a process of its own: vLLM on a model folder, token ids in and out."""

import json
import os
import sys
from pathlib import Path

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
}

from vllm import LLM, SamplingParams


def main(model: str, prompts: str, out: str) -> None:
    engine = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=16,
        seed=0,
        logprobs_mode="processed_logprobs",
    )
    sampling = SamplingParams(temperature=0, max_tokens=24, logprobs=0)
    requests = [{"prompt_token_ids": ids} for ids in json.loads(Path(prompts).read_text())]
    rows = []
    for answer in engine.generate(requests, sampling):
        best = answer.outputs[0]
        logprobs = [step[token].logprob for token, step in zip(best.token_ids, best.logprobs, strict=True)]
        rows.append({"tokens": list(best.token_ids), "logprobs": logprobs, "finish_reason": best.finish_reason})
    Path(out).write_text(json.dumps(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
