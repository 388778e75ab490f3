"""vLLM in this process, beside the trainer: one engine per process, its weights sent after each update.

Each rank has an engine, or `rollout.vllm.tensor_parallel` ranks share one.
"""

import gc
import os
import traceback
import uuid
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from mathrl.core.environment import world_size
from mathrl.core.errors import UserError
from mathrl.core.types import Completion, FinishReason
from mathrl.models.device import hardware_of, rank_gpu, state_kept
from mathrl.models.load import local_folder
from mathrl.models.tool_messages import end_tokens
from mathrl.models.transformers_import import GenerationConfig
from mathrl.models.weights import folder_weights, with_head
from mathrl.params.rollout import Rollout
from mathrl.params.run import Model
from mathrl.rollout.engine import Ended, PerProcessEngine, Progress, Sampling, canary_tolerance, request_seeds
from mathrl.rollout.ranks import from_rank_0, join_ranks
from mathrl.servers.vllm_arguments import ENVIRONMENT, check_vllm, dtype_name, llm_arguments

Request = tuple[Sequence[int], int, int]  # a prompt, its seed and the maximum tokens of its responses
_open: "list[VllmEngine]" = []


class VllmEngine(PerProcessEngine):
    """`RolloutEngine` and `SyncedEngine` over vLLM's offline interface. Made by `open_vllm`."""

    label = "vLLM in this process"

    def __init__(self, folder: Path | str, tokenizer: Any, model: Model, rollout: Rollout, *, trains: bool) -> None:
        """`trains`: it stands beside a model in training, so that it may sleep during updates.

        Raises:
            UserError: vLLM is not installed, or cannot run this model here.
        """
        check_vllm()
        os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
        hardware = hardware_of("cuda" if torch.cuda.is_available() else "cpu")
        if hardware.is_gpu:
            os.environ.update(rank_gpu(os.environ, torch.cuda.device_count()).variables)
        else:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(rollout.vllm.cache_gib or 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of vLLM's own code
            from vllm import LLM  # here: it takes seconds and reads the environment

        path = local_folder(folder)
        self.tokenizer, self.rollout, dtype = tokenizer, rollout, dtype_name(rollout, model)
        self.tolerance, self.dtype = canary_tolerance(rollout, model, dtype), getattr(torch, dtype)
        self.ends = end_tokens(tokenizer, generation_config(path))
        options, ranks = rollout.vllm, world_size()
        if ranks % options.tensor_parallel:
            raise UserError(
                f"rollout.vllm.tensor_parallel is {options.tensor_parallel}, but run.processes is {ranks}: make "
                "run.processes a multiple of it, one process per GPU"
            )
        if ranks > 1:
            join_ranks(hardware.is_gpu)
        self.group_stays = dist.is_initialized()
        arguments = llm_arguments(str(path), model, rollout, hardware, ranks=ranks, trains=trains)
        self.sleeps: bool = arguments["enable_sleep_mode"]
        shared = options.tensor_parallel > 1 and not hardware.is_gpu
        try:
            with own_shared_memory() if shared else nullcontext():
                self.llm = LLM(**arguments)
            # Some kernels refuse a model's sizes only when they are called.
            self._run([([0], 0, 1)], Sampling(1, 1.0, 1))
        except (ValueError, RuntimeError, OSError, NotImplementedError, AssertionError) as error:
            reason = " ".join(str(error).split())[:400] or failed_assertion(error)
            raise UserError(f"{folder}: vLLM cannot run this model ({reason}); see section rollout.vllm") from error
        self.longest = int(self.llm.llm_engine.model_config.max_model_len)
        self.asleep = False

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        seed: int,
        on_progress: Progress = None,
        on_end: Ended = None,
    ) -> list[list[Completion]]:
        """See `RolloutEngine.generate`; vLLM gives all responses at once, so `on_end` is not called.

        Raises:
            UserError: a prompt and a response of max_tokens are longer than the engine takes.
        """
        limits = [sampling.limit(number) for number in range(len(prompts))]
        requests = list(zip(prompts, request_seeds(seed, len(prompts)), limits, strict=True))
        all_requests, first = self._requests_of_all(requests)
        check_length([len(prompt) + limit for prompt, _, limit in all_requests], self.longest)
        outputs = self._run(all_requests, sampling)[first : first + len(requests)]
        if on_progress:
            on_progress(len(requests) * sampling.samples)
        return [self._completions(output, sampling) for output in outputs]

    def _run(self, requests: Sequence[Request], sampling: Sampling) -> list[Any]:
        from vllm import SamplingParams

        greedy = sampling.temperature == 0  # all samples are equal
        if not requests:
            return []
        outputs: list[Any] = self.llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt, _, _ in requests],
            [
                SamplingParams(
                    n=1 if greedy else sampling.samples,
                    temperature=sampling.temperature,
                    top_p=1.0 if greedy else sampling.top_p,
                    max_tokens=limit,
                    seed=seed,
                    stop_token_ids=self.ends,
                    stop=list(sampling.stop),
                    include_stop_str_in_output=True,
                    logprobs=0,
                    flat_logprobs=True,
                    detokenize=bool(sampling.stop),
                )
                for _, seed, limit in requests
            ],
            use_tqdm=False,
        )
        return outputs

    def _completions(self, output: Any, sampling: Sampling) -> list[Completion]:
        completions = []
        for sample in sorted(output.outputs, key=lambda sample: sample.index):
            tokens = np.array(sample.token_ids, np.int32)
            logprobs = np.array(sample.logprobs.logprobs, np.float32)  # flat, one per token: no others are asked for
            assert len(logprobs) == len(tokens)
            text = self.tokenizer.decode(list(sample.token_ids), skip_special_tokens=True)
            reason = finish_reason(sample.finish_reason, sample.stop_reason)
            completions.append(Completion(tokens, logprobs, text, reason))
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


def open_vllm(
    folder: Path | str, tokenizer: Any, model: Model, rollout: Rollout, *, trains: bool = False
) -> VllmEngine:
    """The process's engine, with the weights of the folder.

    One is open at a time, since vLLM's engines are not independent of each other; an older one is closed.
    """
    with state_kept():  # vLLM's worker sets torch's global precision
        while _open:
            _open.pop().close()
        _open.append(VllmEngine(folder, tokenizer, model, rollout, trains=trains))
        _open[0].sync(folder_weights(local_folder(folder)))  # the head too, where the folder has none of its own
    return _open[0]


def failed_assertion(error: BaseException) -> str:
    """Where an assertion without a message failed, for the sentence that reports it.

    vLLM asserts, among others, that the sleeping allocator is free and that the rank has a GPU of its own.
    """
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}: {frame.line}"


def finish_reason(vllm_reason: str | None, stop_reason: Any) -> FinishReason:
    """Why a response ended, by what vLLM says: the string or the token that it stopped at.

    >>> finish_reason("stop", "```"), finish_reason("stop", None), finish_reason("length", None)
    ('stop_string', 'stop', 'length')
    """
    if vllm_reason == "stop":
        return "stop_string" if isinstance(stop_reason, str) else "stop"
    return "length"


def check_length(lengths: Sequence[int], longest: int) -> None:
    """Raises UserError: a prompt and its response, of these lengths, may not fit into the engine."""
    needed = max(lengths, default=0)
    if needed > longest:
        raise UserError(
            f"a prompt and its response take up to {needed} tokens, but the vLLM engine allows {longest}: raise "
            "rollout.vllm.max_model_length (for a server, where it is started), or lower max_tokens"
        )


def generation_config(folder: Path) -> Any:
    try:
        return GenerationConfig.from_pretrained(folder)
    except OSError:
        return None  # the folder has none


FOLDER = Path("/dev/shm")  # where Linux keeps the shared memory of shm_open


@contextmanager
def own_shared_memory() -> Iterator[str]:
    """While an engine is opened, at every rank: the name with which its shared memory begins, another in each run.

    Afterwards the ranks have mapped the memory, and its files are removed, so that a killed run leaves none.
    """
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    name = from_rank_0(lambda: f"mathrl-{uuid.uuid4().hex}")
    original = ExecutorWithExternalLauncher._distributed_args

    def name_rendezvous(executor: Any) -> tuple[str, int, int]:
        _, rank, local_rank = original(executor)
        return f"file://{name}", rank, local_rank  # the ranks have joined their group: nothing is opened there

    ExecutorWithExternalLauncher._distributed_args = name_rendezvous
    try:
        yield name
    finally:
        ExecutorWithExternalLauncher._distributed_args = original
        for file in FOLDER.glob(f"{name}-*"):
            file.unlink(missing_ok=True)
