"""A model at an OpenAI-compatible endpoint that answers problems: concurrent, retried, paid once and never asked twice.

Every answer is written down as it arrives. A run that is killed, or run again, asks only for what it does not have; the
key of an answer is all that it depends on: model, messages, sampling, the number of the sample.
"""

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from mathrl.core.environment import Variable, rank
from mathrl.core.errors import UserError
from mathrl.core.files import encodable
from mathrl.core.hashing import derive_seed, digest
from mathrl.core.paths import state_root
from mathrl.core.types import Completion, Graded, Problem
from mathrl.data.templates import chat_messages, prompt_text
from mathrl.params import Params
from mathrl.params.messages import did_you_mean
from mathrl.params.run import Prompt, RemoteModel
from mathrl.rewards.compose import RewardFunction
from mathrl.rollout.engine import Sampling
from mathrl.rollout.sampler import Sampler

LONGEST_WAIT = 60.0  # seconds between two attempts
Answer = dict[str, Any]  # {"text": …, "finish": "stop", "tokens": 31, "prompt_tokens": 12, "model": "qwen"}


class EndpointSampler(Sampler):
    """Samples problems at an endpoint and grades the answers; it has no tokenizer and no weights.

    A completion's tokens are -1 each, as many as the endpoint counted, and its log-probs are NaN: neither is known.
    `counts` are the requests, the answers that were kept from before, and the retries by reason.
    """

    def __init__(self, remote: RemoteModel, params: Params, stage: str, few_shot: Sequence[Problem] = ()) -> None:
        """
        Raises:
            UserError: a setting that an endpoint cannot follow, or an endpoint that lists its models without this one.
        """
        check_settings(remote, params)
        self.remote, self.prompt, self.few_shot = remote, params.prompt, few_shot
        self.engine: Any = self  # what `sample_problems` asks for the size of its chunks
        self.rollout, self.turns = params.rollout, None
        self.seconds = {"generation": 0.0, "reward": 0.0, "tools": 0.0}
        self.seed = derive_seed(params.run.seed, "endpoint", stage)
        self.client = Client(remote)
        self.answers = Answers(state_root() / "endpoints" / digest([self.client.base, remote.model]))

    @property
    def counts(self) -> Counter[str]:
        return self.client.counts

    def own_text(self, problem: Problem, completion: Completion) -> str:
        return completion.text

    def sample(
        self,
        problems: Sequence[Problem],
        sampling: Sampling,
        reward: RewardFunction,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
        prompts: Sequence[Sequence[int] | None] | None = None,
    ) -> list[list[Graded] | None]:
        """See `Sampler.sample`; an answer's seed follows from its prompt, so that chunks of any size give the same."""
        start = time.perf_counter()
        asked = [(problem, number) for problem in problems for number in range(sampling.samples)]
        answers = self._ask_all([self._body(problem, sampling, number) for problem, number in asked], on_progress)
        pairs = [(problem, as_completion(answer)) for (problem, _), answer in zip(asked, answers, strict=True)]
        middle = time.perf_counter()
        graded = self.grade(pairs, sampling.max_tokens, reward)
        self.seconds = {"generation": middle - start, "reward": time.perf_counter() - middle, "tools": 0.0}
        return [graded[i : i + sampling.samples] for i in range(0, len(graded), sampling.samples)]

    def _body(self, problem: Problem, sampling: Sampling, number: int) -> dict[str, Any]:
        """The request; two samples of one prompt differ in their seed."""
        if self.remote.api == "chat":
            asked: dict[str, Any] = {"messages": chat_messages(problem, self.prompt, self.few_shot)}
        else:
            asked = {"prompt": prompt_text(problem, self.prompt, None, self.few_shot)}
        stop = {"stop": list(sampling.stop)} if sampling.stop else {}
        return {
            "model": self.remote.model,
            **asked,
            **stop,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": derive_seed(self.seed, json.dumps(asked, sort_keys=True), number) % 2**31,
            **self.remote.extra_body,
        }

    def _ask_all(self, bodies: Sequence[Mapping[str, Any]], on_progress: Callable[[int], None] | None) -> list[Answer]:
        keys = [digest(body) for body in bodies]
        missing = {key: body for key, body in zip(keys, bodies, strict=True) if key not in self.answers}
        self.counts["kept"] += len(keys) - len(missing)
        if on_progress and len(keys) > len(missing):
            on_progress(len(keys) - len(missing))
        threads = ThreadPoolExecutor(max(1, min(self.remote.at_a_time, len(missing))))
        futures = [threads.submit(self._ask, key, body) for key, body in missing.items()]
        try:
            for future in as_completed(futures):
                if isinstance(future.exception(), _Stopped):  # another request has the reason
                    continue
                future.result()
                if on_progress:
                    on_progress(1)
        finally:  # after an error: those under way end, and the others are stopped before they are sent
            self.client.stopping.set()
            threads.shutdown()
            self.client.stopping.clear()
        return [self.answers[key] for key in keys]

    def _ask(self, key: str, body: Mapping[str, Any]) -> None:
        """Ask, and keep the answer before this thread asks again: a kill loses no more than the requests under way."""
        self.answers.add(key, self.client.ask(body))

    def account(self) -> dict[str, Any]:
        """What was asked and what it cost, for a file beside the results.

        Example:
            {"endpoint": "http://localhost:8000/v1", "model": "qwen", "answered_as": {"qwen": 40}, "requests": 41,
             "kept": 0, "retries": {"status 429": 1}, "prompt_tokens": 900, "completion_tokens": 5200, "cost": 0.0031}
        """
        counts, remote = self.counts, self.remote
        prompt, completion = self.answers.total("prompt_tokens"), self.answers.total("tokens")
        cost = None
        if remote.price_input is not None and remote.price_output is not None:
            cost = (prompt * remote.price_input + completion * remote.price_output) / 1e6
        return {
            "endpoint": remote.endpoint,
            "model": remote.model,
            "licence": remote.licence or "not stated",
            "answered_as": dict(self.answers.models()),
            "requests": counts["requests"],
            "kept": counts["kept"],
            "retries": {
                name.removeprefix("retry "): n for name, n in sorted(counts.items()) if name.startswith("retry ")
            },
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "cost": cost,
        }

    def notes(self) -> list[str]:
        """What a person should know of the answers: another model's name, and what they cost."""
        account = self.account()
        others = {name: count for name, count in account["answered_as"].items() if name != self.remote.model}
        named = ", ".join(f"{name!r} ({count} answers)" for name, count in others.items())
        notes = (
            [f"{self.remote.endpoint} was asked for {self.remote.model!r} and answered as {named}"] if others else []
        )
        paid = "" if account["cost"] is None else f", cost {account['cost']:.4f}"
        retried = "".join(f", {count} retried ({reason})" for reason, count in account["retries"].items())
        return [
            *notes,
            f"{self.remote.endpoint}: {account['requests']} requests{retried}, {account['kept']} answers of before; "
            f"{account['prompt_tokens']:,} and {account['completion_tokens']:,} tokens of prompts and answers{paid}",
        ]


def check_settings(remote: RemoteModel, params: Params) -> None:
    """Raises UserError: the prompt or the rollout has what only a model with its weights here can do."""
    prompt: Prompt = params.prompt
    if params.rollout.tool.kind != "none":
        raise UserError("an endpoint samples without tools; set rollout.tool.kind to none")
    if prompt.response_prefix:
        raise UserError(
            "prompt.response_prefix starts a response, which an endpoint does not let us do; leave it empty"
        )
    if prompt.chat_template_kwargs:
        raise UserError(
            "prompt.chat_template_kwargs goes to a tokenizer here; for an endpoint write extra_body, such as "
            "{chat_template_kwargs: {enable_thinking: false}}"
        )
    if remote.api == "completions" and prompt.template == "chat":
        raise UserError("api completions takes a text, and prompt.template chat makes messages; set api to chat")


def as_completion(answer: Answer) -> Completion:
    count = int(answer["tokens"])
    finish = "length" if answer["finish"] == "length" else "stop"
    return Completion(np.full(count, -1, np.int32), np.full(count, np.nan, np.float32), answer["text"], finish)  # type: ignore[arg-type]


class Answers:
    """The answers of an endpoint on disk, by the digest of their requests; each rank appends to a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, dict[str, Answer]()
        self.used: set[str] = set()
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.glob("*.jsonl"))
        for file in files:
            self.rows |= dict(_whole_rows(file))
        # By their number too: an earlier process of the same one, as in containers, may have left half a row.
        self.file = folder / f"{rank()}-{os.getpid()}-{len(files)}.jsonl"

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def __getitem__(self, key: str) -> Answer:
        self.used.add(key)
        return self.rows[key]

    def add(self, key: str, answer: Answer) -> None:
        with self._lock, self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"key": key, **answer}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
            self.rows[key] = answer

    def total(self, name: str) -> int:
        """Of the answers that were used, whoever asked for them."""
        return sum(int(self.rows[key][name]) for key in self.used)

    def models(self) -> Counter[str]:
        return Counter(str(self.rows[key]["model"]) for key in self.used)


def _whole_rows(file: Path) -> Iterator[tuple[str, Answer]]:
    """The rows of a file but the last if a kill cut it short."""
    for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            row = json.loads(line)
            yield row.pop("key"), row
        except (ValueError, KeyError, AttributeError):
            continue


class _Stopped(Exception):
    """The run ends for what another request met: this one is not sent."""


class Client:
    """Requests to one endpoint, each tried `attempts` times; a rate limit holds all of them back."""

    def __init__(self, remote: RemoteModel) -> None:
        self.remote, self.counts = remote, Counter[str]()
        self.stopping = threading.Event()
        self._lock, self._not_before = threading.Lock(), 0.0
        key, self.base = Variable.ENDPOINT_KEY.get(), remote.endpoint.rstrip("/")
        self.url = f"{self.base}/{'chat/completions' if remote.api == 'chat' else 'completions'}"
        limits = httpx.Limits(max_connections=remote.at_a_time)
        timeout = httpx.Timeout(remote.timeout_seconds, connect=min(10.0, remote.timeout_seconds))
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(timeout=timeout, headers=headers, limits=limits)
        self._check_name(f"{self.base}/models")

    def _check_name(self, url: str) -> None:
        """Raises UserError: the endpoint lists its models, and this one is not among them."""
        try:
            listed = [str(row["id"]) for row in self.http.get(url).json()["data"]]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
            return  # it lists none; a wrong name is refused by the first request
        if listed and self.remote.model not in listed:
            shown = ", ".join(listed[:8]) + (", …" if len(listed) > 8 else "")
            raise UserError(
                f"{self.remote.endpoint} has no model {self.remote.model!r}{did_you_mean(self.remote.model, listed)}; "
                f"it has: {shown}"
            )

    def ask(self, body: Mapping[str, Any]) -> Answer:
        """The answer to one request.

        Raises:
            UserError: the endpoint refuses the request, or gives no usable reply in `attempts` attempts. Every other
                request is stopped.
        """
        reason = ""
        for attempt in range(self.remote.attempts):
            self._wait(attempt)
            if self.stopping.is_set():
                raise _Stopped
            try:
                self._count("requests")
                reply = self.http.post(self.url, json=dict(body))
            except httpx.HTTPError as error:
                reason = f"no reply, {type(error).__name__}"
            else:
                if reply.is_success:
                    try:
                        return read_answer(reply.json())
                    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
                        reason = "a reply that is no answer"
                elif reply.status_code < 500 and reply.status_code not in (408, 409, 429):
                    self.stopping.set()
                    raise UserError(f"{self.url}, model {self.remote.model}: {_refusal(reply)}")
                else:
                    reason = f"status {reply.status_code}"
                    self._hold_back(reply.headers.get("retry-after"))
            self._count(f"retry {reason}")
        self.stopping.set()
        raise UserError(
            f"{self.url}, model {self.remote.model}: {reason}, after {self.remote.attempts} attempts; what was "
            "answered is kept, so the same command goes on from there"
        )

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def _wait(self, attempt: int) -> None:
        backoff = min(LONGEST_WAIT, 0.5 * 2**attempt) * (0.5 + random.random()) if attempt else 0.0
        until = max(time.monotonic() + backoff, self._not_before)
        while (left := max(until, self._not_before) - time.monotonic()) > 0 and not self.stopping.is_set():
            time.sleep(min(left, 0.2))

    def _hold_back(self, seconds: str | None) -> None:
        """Let no request start before the endpoint wants one again."""
        try:
            wait = min(LONGEST_WAIT, float(seconds or 0.0))
        except ValueError:  # a date
            wait = 1.0
        with self._lock:
            self._not_before = max(self._not_before, time.monotonic() + wait)


def _refusal(reply: httpx.Response) -> str:
    if reply.status_code in (401, 403):
        return f"status {reply.status_code}; set {Variable.ENDPOINT_KEY} to the endpoint's key"
    return f"status {reply.status_code}: {' '.join(reply.text.split())[:200]}"


def read_answer(reply: Any) -> Answer:
    """What is kept of a reply. A reasoning model's thoughts stand before the answer, within its tags.

    Raises:
        ValueError, KeyError, IndexError, TypeError, AttributeError: it is none.
    """
    choice = reply["choices"][0]
    message = choice.get("message")
    if message is None:
        text = choice["text"]
    else:
        text = message.get("content")
        thoughts = message.get("reasoning_content") or message.get("reasoning")
        text = f"<think>{thoughts}</think>{text or ''}" if isinstance(thoughts, str) else text
    if not isinstance(text, str):
        raise ValueError("no text")
    usage = reply.get("usage") or {}  # without it lengths are 0
    return {
        "text": encodable(text),
        "finish": str(choice.get("finish_reason") or "stop"),
        "tokens": int(usage.get("completion_tokens") or 0),
        "prompt_tokens": int(usage.get("prompt_tokens") or 0),
        "model": str(reply.get("model") or ""),
    }
