"""Sampling from vLLM servers, on this machine or on others: token ids in, token ids and log-probs out."""

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mathrl.core.errors import UserError
from mathrl.core.types import Completion
from mathrl.models.weights import write_buckets
from mathrl.params.rollout import Rollout
from mathrl.rollout.engine import Ended, Groups, Progress, Prompts, Sampling, keep_nothing, request_seeds
from mathrl.rollout.server import Server, ServerDied
from mathrl.rollout.servers import Pool
from mathrl.rollout.vllm_engine import finish_reason


class ServerEngine:
    """`RolloutEngine` and `SyncedEngine` over the servers of `rollout.servers`.

    A prompt is one request for all its samples. Equal seeds give equal samples at whichever server.
    """

    shared = True

    def __init__(self, tokenizer: Any, ends: Sequence[int], rollout: Rollout, dtype: str, tolerance: float) -> None:
        """Raises UserError: no server answers within `rollout.servers.wait_seconds`."""
        self.tokenizer, self.ends, self.rollout = tokenizer, list(ends), rollout
        self.dtype, self.tolerance = getattr(torch, dtype), tolerance
        self.pool = Pool(rollout.servers)
        self.folder: Path | None = None
        self.sent = 0

    def generate(
        self, prompts: Prompts, sampling: Sampling, seed: int, on_progress: Progress = None, on_end: Ended = None
    ) -> Groups:
        """See `RolloutEngine.generate`. Requests of a server that dies go to the others.

        Raises:
            UserError: no server is left and none came back in time, or a request is refused.
        """
        lock = threading.Lock()

        def request(number: int, prompt: Sequence[int], request_seed: int) -> list[Completion]:
            limited = replace(sampling, max_tokens=sampling.limit(number), limits=())
            while True:
                server = self.pool.take()
                try:
                    completions = self._ask(server, prompt, limited, request_seed)
                    break
                except ServerDied as error:
                    self.pool.died(server, error)
                finally:
                    self.pool.give_back(server)
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
            while running:  # awake every second: `trainers.prefetch` ends a thread only where it runs Python
                done, running = wait(running, 1.0, FIRST_EXCEPTION)
                for future in done:
                    future.result()  # raises the first error, without waiting for the other requests
            return [future.result() for future in futures]
        except BaseException:
            self.pool.hang_up()  # end the requests in flight, or an exit would wait for them
            raise
        finally:
            workers.shutdown(wait=False, cancel_futures=True)

    def _ask(self, server: Server, prompt: Sequence[int], sampling: Sampling, seed: int) -> list[Completion]:
        with self.pool.watched(server):
            choices = server.complete(prompt, sampling, seed, self.ends)
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
        """See `SyncedEngine.sync`: written as safetensors to the shared folder, which every server reads."""
        root = self._folder()
        previous, self.sent = root / str(self.sent), self.sent + 1
        folder = root / str(self.sent)
        write_buckets(weights, folder, self.dtype, self.rollout.servers.bucket_mb)
        self.pool.send(str(folder))
        shutil.rmtree(previous, ignore_errors=True)
        return self.pool.sync_message()

    def sync_folder(self, folder: Path) -> str:
        """Have the servers read the weights of a model folder; the message for `follow`."""
        self.pool.send(str(folder.resolve()))
        return self.pool.sync_message()

    def follow(self, sync_message: str) -> None:
        """See `Pool.follow`. A server that comes back receives these weights."""
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
        if self.folder is None:
            root = self.rollout.servers.folder
            try:
                self.folder = Path(tempfile.mkdtemp(prefix="mathrl-weights-", dir=root))
            except OSError as error:
                raise UserError(
                    f"rollout.servers.folder: {root} cannot be written to ({error.strerror}); name a folder "
                    "that this machine and the servers share"
                ) from None
            self.folder.chmod(0o755)  # a server may be another user's process
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        return self.folder
