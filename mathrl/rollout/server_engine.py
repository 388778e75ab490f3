"""Sampling from vLLM servers, on this machine or on others: token ids in, token ids and log-probs out."""

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from mathrl.core import hashing
from mathrl.core.environment import Variable, rank
from mathrl.core.errors import UserError
from mathrl.core.types import Completion
from mathrl.models.lora import adapter_tensors, frozen_weights, has_lora, lora_of, save_adapter
from mathrl.models.sharding import is_sharded
from mathrl.models.weights import adapter_digest, folder_digest, full_weights, weight_shapes, with_head, write_buckets
from mathrl.params.rollout import Rollout
from mathrl.rollout.engine import Ended, Groups, Progress, Prompts, Sampling, keep_nothing, request_seeds
from mathrl.rollout.ranks import from_rank_0, gather
from mathrl.rollout.vllm_engine import finish_reason
from mathrl.servers.protocol import ADAPTER
from mathrl.servers.server import SentWeights, Server, ServerDied
from mathrl.servers.server_pool import ServerPool

if TYPE_CHECKING:
    from mathrl.servers.weight_transfer import Sender, SyncedWeights

TRANSFERRED = "transferred"  # folder of weights that went by a transfer, for servers that were lost
MOST_TRIES = 10  # of a prompt: one on which every server breaks would go round for ever


class ServerEngine:
    """`RolloutEngine` and `SyncedEngine` over the servers of `rollout.servers`.

    A prompt is one request for all its samples. Equal seeds give equal samples at whichever server.
    """

    shared = True

    def __init__(
        self,
        tokenizer: Any,
        ends: Sequence[int],
        rollout: Rollout,
        dtype: str,
        tolerance: float,
        pool: ServerPool | None = None,
        network: Any = None,
    ) -> None:
        """Without `pool` the servers are those that `rollout.servers` names; `network` is the model in training.

        Raises UserError: no server answers within `rollout.servers.wait_seconds`.
        """
        self.tokenizer, self.ends, self.rollout = tokenizer, list(ends), rollout
        self.dtype, self.tolerance = getattr(torch, dtype), tolerance
        self.pool = pool or ServerPool(rollout.servers)
        self.network = network
        self.base: SentWeights | None = None  # the weights that adapters are added to
        self.folder: Path | None = None
        self.sent = 0
        self.sender = self._sender()
        self.pool.as_files = self._as_files

    def generate(
        self, prompts: Prompts, sampling: Sampling, seed: int, on_progress: Progress = None, on_end: Ended = None
    ) -> Groups:
        """See `RolloutEngine.generate`. Requests of a server that dies go to the others.

        Raises:
            UserError: no server is left and none came back in time, or a prompt failed
                `MOST_TRIES` times or is refused.
        """
        lock = threading.Lock()

        def request(number: int, prompt: Sequence[int], request_seed: int) -> list[Completion]:
            limited = replace(sampling, max_tokens=sampling.limit(number), limits=())
            completions = self._ask_any(number, prompt, limited, request_seed)
            with lock:
                if on_end:
                    for sample, completion in enumerate(completions):
                        on_end(number, sample, completion.tokens.tolist(), completion.finish_reason, keep_nothing)
                if on_progress:
                    on_progress(len(completions))
            return completions

        threads = self.rollout.servers.at_a_time * len(self.pool.servers)
        workers = ThreadPoolExecutor(max(1, min(threads, len(prompts))))
        seeds = request_seeds(seed, len(prompts))
        try:
            requests = zip(range(len(prompts)), prompts, seeds, strict=True)
            futures = [workers.submit(request, *arguments) for arguments in requests]
            running = set(futures)
            while running:  # awake every second: `SamplerThread` ends a thread only where it runs Python
                done, running = wait(running, 1.0, FIRST_EXCEPTION)
                for future in done:
                    future.result()  # raises the first error, without waiting for the other requests
            return [future.result() for future in futures]
        except BaseException:
            self.pool.hang_up()  # end the requests in flight, or an exit would wait for them
            raise
        finally:
            workers.shutdown(wait=False, cancel_futures=True)

    def _ask_any(self, number: int, prompt: Sequence[int], sampling: Sampling, seed: int) -> list[Completion]:
        """The completions from the least busy server, or from another if that one fails."""
        reason: ServerDied | None = None
        for _ in range(MOST_TRIES):
            server = self.pool.take()
            try:
                return self._ask(server, prompt, sampling, seed)
            except ServerDied as error:
                self.pool.died(server, error)
                reason = error
            finally:
                self.pool.give_back(server)
        raise UserError(
            f"prompt {number} ({len(prompt)} tokens) failed {MOST_TRIES} times on the vLLM servers, the last time "
            f"with: {reason}; see the servers' logs"
        )

    def _ask(self, server: Server, prompt: Sequence[int], sampling: Sampling, seed: int) -> list[Completion]:
        greedy = sampling.temperature == 0  # all samples are equal
        with self.pool.watch(server):
            digests, model = self.pool.digests(), ADAPTER if self.pool.has_adapter else server.model
            body = completion_request(model, prompt, sampling, seed, self.ends)
            choices = server.complete(body, body["n"], digests) * (sampling.samples if greedy else 1)
        return [
            Completion(
                tokens=np.array(choice.token_ids, np.int32),
                logprobs=np.array(choice.logprobs, np.float32),
                text=self.tokenizer.decode(choice.token_ids, skip_special_tokens=True),
                finish_reason=finish_reason(choice.finish_reason, choice.stop_reason),
            )
            for choice in choices
        ]

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """See `SyncedEngine.sync`: by NCCL or CUDA IPC, or as safetensors in the shared folder that every server reads.

        A network with adapters sends them alone, after the weights that they are added to, if every server takes them.
        """
        if self.sender and not self._sends_adapter():
            self._transfer(self.sender, weights)
            return self.pool.sync_message()
        previous, self.sent = self._folder() / str(self.sent), self.sent + 1
        folder = self._folder() / str(self.sent)
        try:
            if self._sends_adapter():
                sent = self._write_adapter(folder)
            else:
                digest = write_buckets(weights, folder, self.dtype, self.rollout.servers.bucket_mb)
                sent = SentWeights(str(folder), digest)
        except (OSError, SafetensorError) as error:
            raise self._unwritable(error) from None
        self.pool.send(sent)
        shutil.rmtree(previous, ignore_errors=True)
        return self.pool.sync_message()

    def _transfer(self, sender: "Sender", weights: Iterable[tuple[str, Tensor]]) -> None:
        source = self._source(weights)

        def transfer(servers: list[Server]) -> tuple[str, dict[str, str]]:
            failures = sender.send(servers, source)
            return source.total.hexdigest(), failures

        self._remove_transferred()
        self.pool.send_by(transfer)

    def _as_files(self, digest: str) -> SentWeights | None:
        """The weights with this digest, which were transferred, as files for a server that was lost since.

        None where the network holds others by now (the next sync is near then), or is sharded: all ranks would have to
        gather them.

        Raises:
            UserError: the folder cannot be written to.
        """
        if self.network is None or is_sharded(self.network):
            return None
        self._remove_transferred()
        folder = self._folder() / TRANSFERRED
        try:
            written = write_buckets(full_weights(self.network), folder, self.dtype, self.rollout.servers.bucket_mb)
        except (OSError, SafetensorError) as error:
            raise self._unwritable(error) from None
        if written != digest:
            self._remove_transferred()
            return None
        return SentWeights(str(folder), digest)

    def _remove_transferred(self) -> None:
        """Remove the files of weights that are no longer the newest."""
        if self.folder is not None:
            shutil.rmtree(self.folder / TRANSFERRED, ignore_errors=True)

    def _source(self, weights: Iterable[tuple[str, Tensor]]) -> "SyncedWeights":
        from mathrl.servers.weight_transfer import SyncedWeights  # imports vLLM: seconds

        return SyncedWeights(weights, weight_shapes(self.network), self.dtype)

    def join(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See `SyncedEngine.join`."""
        if self.sender and not self._sends_adapter():
            self._remove_transferred()
            self.sender.join(self._source(weights))

    def _sender(self) -> "Sender | None":
        """What sends weights without files; None where they are files."""
        network, params = self.network, self.rollout.servers
        if network is None:  # a stage that only samples: the servers read the model's own folder
            return None
        gpu = str(torch.cuda.get_device_properties(network.device).uuid) if network.device.type == "cuda" else ""
        gpus = gather(gpu) or []
        kind = from_rank_0(lambda: transfer_of(params.weights, self.pool.alive(), gpus))
        if kind == "files":
            return None
        from mathrl.servers.weight_transfer import sender_of  # imports vLLM: seconds

        return sender_of(kind, rank(), params.timeout_seconds, params.bucket_mb * 1_000_000)

    def _sends_adapter(self) -> bool:
        if self.network is None or not has_lora(self.network) or is_sharded(self.network):
            return False
        rank = lora_of(self.network).r
        return all(server.adapters >= rank for server in self.pool.alive())

    def _write_adapter(self, folder: Path) -> SentWeights:
        if self.base is None:
            path = self._folder() / "base"
            digest = write_buckets(
                with_head(frozen_weights(self.network)), path, self.dtype, self.rollout.servers.bucket_mb
            )
            self.base = SentWeights(str(path), digest)
        save_adapter(self.network, adapter_tensors(self.network), folder)
        return SentWeights(str(folder), adapter_digest(self.base.digest, folder), self.base)

    def sync_folder(self, folder: Path) -> str:
        """Have the servers read the weights of a model folder; the message for `follow`."""
        self.pool.send(SentWeights(str(folder.resolve()), folder_digest(folder)))
        return self.pool.sync_message()

    def follow(self, sync_message: str) -> None:
        """See `ServerPool.follow`. A server that comes back receives these weights."""
        self.pool.follow(sync_message)

    def probe(self, prompts: Prompts, sampling: Sampling, seed: int) -> list[tuple[str, Groups]]:
        """See `SyncedEngine.probe`; at least one server answers."""
        answers: list[tuple[str, Groups]] = []
        seeds = request_seeds(seed, len(prompts))
        while not answers:
            self.pool.revive(wait=True)
            for server in self.pool.alive():
                try:
                    requests = zip(prompts, seeds, strict=True)
                    completions = [
                        self._ask(server, prompt, sampling, request_seed) for prompt, request_seed in requests
                    ]
                    answers.append((server.url, completions))
                except ServerDied as error:
                    self.pool.died(server, error)
        return answers

    def sleep(self) -> None:
        """Nothing to release: the servers have memory of their own."""

    def _folder(self) -> Path:
        """The folder of this run's weights; what a killed attempt at the run has left in it is removed."""
        if self.folder is None:
            root, record = self.rollout.servers.folder, Variable.RECORD.get()
            try:
                if record:
                    name = f"mathrl-weights-{hashing.digest(record)}" + (f"-{rank()}" if rank() else "")
                    self.folder = Path(root or tempfile.gettempdir()) / name
                    shutil.rmtree(self.folder, ignore_errors=True)
                    self.folder.mkdir()
                else:
                    self.folder = Path(tempfile.mkdtemp(prefix="mathrl-weights-", dir=root))
                self.folder.chmod(0o755)  # a server may be another user's process
            except OSError as error:
                raise self._unwritable(error) from None
            self._remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        return self.folder

    def close(self) -> None:
        """Remove this run's weights from the folder that the servers share. A later sync makes them again.

        Without it they go when the engine does; a forked rank may end before.
        """
        if self.folder is not None:
            self._remove()
            self.folder, self.base = None, None

    def _unwritable(self, error: Exception) -> UserError:
        root = self.rollout.servers.folder or tempfile.gettempdir()
        reason = error.strerror if isinstance(error, OSError) else error
        return UserError(
            f"rollout.servers.folder: {root} cannot be written to ({reason}); name a folder that this machine and the "
            "servers share"
        )


def completion_request(
    model: str, prompt: Sequence[int], sampling: Sampling, seed: int, ends: Sequence[int]
) -> dict[str, Any]:
    """The body of /v1/completions for the samples of a prompt; one if they are greedy, and all equal."""
    greedy = sampling.temperature == 0
    return {
        "model": model, "prompt": list(prompt), "n": 1 if greedy else sampling.samples,
        "temperature": sampling.temperature, "top_p": 1.0 if greedy else sampling.top_p,
        "max_tokens": sampling.max_tokens, "seed": seed, "stop_token_ids": list(ends), "logprobs": 0,
        "stop": list(sampling.stop), "include_stop_str_in_output": True,
        "return_token_ids": True, "skip_special_tokens": True,
        # The served model's generation config may set these.
        "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    }  # fmt: skip


Transfer = Literal["files", "nccl", "ipc"]


class ReachableServer(Protocol):
    """A server: `transfer` is how weights can come besides files, `gpus` the UUIDs of its workers' GPUs."""

    url: str
    transfer: str
    gpus: tuple[str, ...]


def transfer_of(
    wanted: Literal["auto", "files", "nccl", "ipc"], servers: Sequence[ReachableServer], own_gpus: Sequence[str]
) -> Transfer:
    """How weights go from a trainer, whose ranks have the GPUs `own_gpus` (empty names: CPUs), to the servers.

    Raises:
        UserError: what the parameters ask for cannot be; `auto` takes files then.
    """
    if wanted == "files":
        return "files"
    kinds: tuple[Literal["nccl", "ipc"], ...] = ("nccl", "ipc") if wanted == "auto" else (wanted,)
    problems = [_problem(kind, servers, own_gpus) for kind in kinds]
    for kind, problem in zip(kinds, problems, strict=True):
        if not problem:
            return kind
    if wanted == "auto":
        return "files"
    raise UserError(f"rollout.servers.weights is {wanted}, but {problems[0]}")


def _problem(kind: Literal["nccl", "ipc"], servers: Sequence[ReachableServer], own_gpus: Sequence[str]) -> str:
    """Why weights cannot go that way, empty if they can."""
    if not all(own_gpus):
        return "the trainer is on a CPU: set it to files"
    for server in servers:
        if server.transfer != kind:
            has = "NCCL" if server.transfer == "nccl" else "CUDA IPC" if server.transfer == "ipc" else "files alone"
            command = f"mathrl serve MODEL --set rollout.servers.weights={kind}"
            return f"{server.url} takes weights by {has}: start it with `{command}` on a GPU"
        if kind == "nccl" and own_gpus[0] in server.gpus:
            return f"{server.url} is on the GPU of rank 0, where NCCL cannot have both: set it to ipc"
        if kind == "ipc" and not set(server.gpus) <= set(own_gpus):
            return f"{server.url} has a GPU that no rank has: set it to nccl"
    return ""
