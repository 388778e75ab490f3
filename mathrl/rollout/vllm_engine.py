"""vLLM in this process, beside the trainer: one engine per process, its weights sent after each update.

Each rank has an engine, or `rollout.vllm.tensor_parallel` ranks share one.
"""

import gc
import importlib.util
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.launch import rank, rendezvous, world_size
from mathrl.core.types import Completion
from mathrl.models.load import resolve_folder
from mathrl.models.transformers_import import GenerationConfig
from mathrl.models.weights import folder_weights, with_head
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model, PretrainedModel
from mathrl.rollout.engine import (
    PerProcessEngine,
    Progress,
    Sampling,
    canary_tolerance,
    dtype_name,
    end_tokens,
    request_seeds,
)

# Set before vllm is imported: no usage statistics, the engine in this process, its threads not bound to one core.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
# The head has its own matrix, sent with every sync: vLLM 0.32 on a CPU does not update a tied one.
UNTIED = {"tie_word_embeddings": False}

_open: "list[VllmEngine]" = []


def check_vllm() -> None:
    """Raises UserError: vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "rollout.engine needs vLLM, which is not installed: `make engines` installs the build for this machine; "
            "or set rollout.engine to torch"
        )


class VllmEngine(PerProcessEngine):
    """`RolloutEngine` and `SyncedEngine` over vLLM's offline interface. Made by `open_vllm`."""

    label = "vLLM in this process"

    def __init__(self, folder: Path | str, tokenizer: Any, model: Model, rollout: Rollout) -> None:
        """Raises UserError: vLLM is not installed, or cannot run this model here."""
        check_vllm()
        os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
        on_gpu = torch.cuda.is_available()
        if not on_gpu:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(rollout.vllm.cache_gib or 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of vLLM's own code
            from vllm import LLM  # here: it takes seconds and reads the environment

        path = local_folder(folder)
        trust = isinstance(model.base, PretrainedModel) and model.base.trust_remote_code
        self.tokenizer, self.rollout, dtype = tokenizer, rollout, dtype_name(rollout, model)
        self.tolerance, self.dtype = canary_tolerance(rollout, model, dtype), getattr(torch, dtype)
        self.ends = end_tokens(tokenizer, generation_config(path))
        options, ranks = rollout.vllm, world_size()
        self.sleeps = options.sleep and on_gpu  # vLLM refuses it on a CPU
        if ranks % options.tensor_parallel:
            raise UserError(
                f"rollout.vllm.tensor_parallel is {options.tensor_parallel}, but run.processes is {ranks}: make "
                "run.processes a multiple of it, one process a GPU"
            )
        if ranks > 1:
            _join(on_gpu)
        self.group_stays = dist.is_initialized()
        cache = options.cache_gib * 2**30 if options.cache_gib and on_gpu else None
        try:
            self.llm = LLM(
                model=str(path), trust_remote_code=trust, skip_tokenizer_init=True,
                dtype=dtype, tensor_parallel_size=options.tensor_parallel, seed=0,
                distributed_executor_backend="external_launcher" if ranks > 1 else None,
                max_model_len=options.max_model_length, max_num_seqs=rollout.max_sequences,
                gpu_memory_utilization=options.memory_share, kv_cache_memory_bytes=cache,
                enforce_eager=not on_gpu if options.eager is None else options.eager, enable_sleep_mode=self.sleeps,
                hf_overrides=UNTIED, logprobs_mode="processed_logprobs", generation_config="vllm",
                use_tqdm_on_load=False,
            )  # fmt: skip
            # Some kernels refuse a model's sizes only when they are called.
            self._run([([0], 0)], Sampling(1, 1.0, 1))
        except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
            reason = " ".join(str(error).split())[:400]
            raise UserError(f"{folder}: vLLM cannot run this model ({reason}); see section rollout.vllm") from error
        self.longest = int(self.llm.llm_engine.model_config.max_model_len)
        self.asleep = False

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int, on_progress: Progress = None
    ) -> list[list[Completion]]:
        """See `RolloutEngine.generate`.

        Raises:
            UserError: a prompt and a response of max_tokens are longer than the engine takes.
        """
        requests = list(zip(prompts, request_seeds(seed, len(prompts)), strict=True))
        all_requests, first = self._requests_of_all(requests)
        check_length([prompt for prompt, _ in all_requests], sampling, self.longest)
        outputs = self._run(all_requests, sampling)[first : first + len(requests)]
        if on_progress:
            on_progress(len(requests) * sampling.samples)
        return [self._completions(output, sampling) for output in outputs]

    def _run(self, requests: Sequence[tuple[Sequence[int], int]], sampling: Sampling) -> list[Any]:
        from vllm import SamplingParams

        greedy = sampling.temperature == 0  # all samples are equal
        if not requests:
            return []
        outputs: list[Any] = self.llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt, _ in requests],
            [
                SamplingParams(
                    n=1 if greedy else sampling.samples,
                    temperature=sampling.temperature,
                    top_p=1.0 if greedy else sampling.top_p,
                    max_tokens=sampling.max_tokens,
                    seed=seed,
                    stop_token_ids=self.ends,
                    logprobs=0,
                    detokenize=False,
                )
                for _, seed in requests
            ],
            use_tqdm=False,
        )
        return outputs

    def _completions(self, output: Any, sampling: Sampling) -> list[Completion]:
        completions = []
        for sample in sorted(output.outputs, key=lambda sample: sample.index):
            tokens = tuple(sample.token_ids)
            logprobs = tuple(step[token].logprob for token, step in zip(tokens, sample.logprobs, strict=True))
            text = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
            completions.append(
                Completion(tokens, logprobs, text, "stop" if sample.finish_reason == "stop" else "length")
            )
        return completions * sampling.samples if sampling.temperature == 0 else completions

    def _requests_of_all(self, requests: list[Any]) -> tuple[list[Any], int]:
        """The requests of all ranks that share this engine, and the index of this rank's first."""
        if self.rollout.vllm.tensor_parallel == 1:
            return requests, 0
        from vllm.distributed.parallel_state import get_tp_group

        group = get_tp_group()
        shares: list[Any] = [None] * group.world_size
        dist.all_gather_object(shares, requests, group=group.cpu_group)
        before = sum(len(share) for share in shares[: group.rank_in_group])
        return [request for share in shares for request in share], before

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """See `SyncedEngine.sync`. The weights are taken one at a time."""
        if self.asleep:
            self.llm.wake_up(tags=["weights"])
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": with_head(weights)})
        if self.asleep:
            self.llm.wake_up(tags=["kv_cache"])
            self.asleep = False
        self.llm.reset_prefix_cache()
        return ""

    def sleep(self) -> None:
        if self.sleeps and not self.asleep:
            self.llm.sleep(level=2)  # drops the weights: `sync` brings new ones
            self.asleep = True

    def close(self) -> None:
        """End the engine, so that another can be opened in this process.

        vLLM would also destroy the process group, which the trainer's ranks (and DeepSpeed) use.
        """
        from vllm.distributed import parallel_state

        def leave_world() -> None:
            if parallel_state._WORLD:
                parallel_state._WORLD.destroy()
            parallel_state._WORLD = parallel_state._NODE_COUNT = None

        destroy = parallel_state.destroy_distributed_environment
        if self.group_stays:
            parallel_state.destroy_distributed_environment = leave_world
        try:
            self.llm.llm_engine.engine_core.shutdown()
        finally:
            parallel_state.destroy_distributed_environment = destroy
        del self.llm
        gc.collect()


def open_vllm(folder: Path | str, tokenizer: Any, model: Model, rollout: Rollout) -> VllmEngine:
    """The process's engine, with the weights of the folder.

    One is open at a time, since vLLM's engines are not independent of each other; an older one is closed.
    """
    while _open:
        _open.pop().close()
    _open.append(VllmEngine(folder, tokenizer, model, rollout))
    _open[0].sync(folder_weights(local_folder(folder)))  # the head too, where the folder has none of its own
    return _open[0]


def check_length(prompts: Sequence[Sequence[int]], sampling: Sampling, longest: int) -> None:
    """Raises UserError: a prompt and its response may not fit into the engine."""
    needed = max(map(len, prompts), default=0) + sampling.max_tokens
    if needed > longest:
        raise UserError(
            f"a prompt and its response take up to {needed} tokens, but the vLLM engine {longest}: raise "
            "rollout.vllm.max_model_length (where it is a server, its own), or lower max_tokens"
        )


def local_folder(folder: Path | str) -> Path:
    """The local folder of a model folder, of the model that it refers to, or of a hub id."""
    path, options = resolve_folder(folder)
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.model", "*.txt"]
    return Path(snapshot_download(path, revision=options.get("revision"), allow_patterns=patterns))


def generation_config(folder: Path) -> Any:
    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:
        return None  # the folder has none


def _join(on_gpu: bool) -> None:
    """Join the process group of vLLM's ranks, unless the trainer has made it."""
    if not dist.is_initialized():
        folder = rendezvous()
        method = f"file://{folder}/vllm" if folder else "env://"
        dist.init_process_group("nccl" if on_gpu else "gloo", init_method=method, rank=rank(), world_size=world_size())
