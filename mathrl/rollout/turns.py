"""Responses in turns: the model samples up to a tool call, the tool answers, the model samples on.

A wave is one call of the engine. The first samples all responses, each until it ends or calls; the calls of a wave run
at once, in threads, while the engine still samples the others. The next waves continue those that called, from their
prompt, their tokens so far and the tool's output; the torch engine reads the output alone, since what it computed of
the rest is kept while the calls run. So the tokens and log-probs of a turn are those of a plain
`RolloutEngine.generate` over these prompts with the wave's seed (`wave_seed`), whichever engine samples, and do not
depend on how long a tool took. (Keys that were kept and keys that are read again differ by rounding.)
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mathrl.core.hashing import derive_seed
from mathrl.core.types import CallStatus, Completion, FinishReason, ToolCall
from mathrl.models.decode import KeptKeys
from mathrl.params.rollout import Turns
from mathrl.rollout.call_formats import Asked, make_format, show_output
from mathrl.rollout.engine import Groups, Keep, Progress, Prompts, RolloutEngine, Sampling
from mathrl.tools.tool import Session, Tool

THREADS = 64
STOPS_PER_CALL = 4  # a response stops at most so often per call that it may make: not every closing fence is a call's
Answer = tuple[str, CallStatus, float]  # the tool's text, how the call ended, seconds


def wave_seed(seed: int, batch: int, wave: int, quiet: bool) -> int:
    """The seed of an engine's call: that of wave 1, 2, … of a batch of responses; `quiet`: of those that stop no more.

    Wave 0, which samples all responses, has the seed itself.
    """
    return derive_seed(seed, "wave", batch, wave, int(quiet))


@dataclass(eq=False)
class Response:
    """A response as it grows to at most `room` tokens; its last turn begins at the token `turn`.

    `asked` are the calls that it waits for, `answers` are theirs. It is `quiet` once it may call no more. `kept` is
    what the engine has computed of it, while it waits.
    """

    prompt: Sequence[int]
    room: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    reason: FinishReason = "length"
    stops: int = 0
    quiet: bool = False
    asked: list[Asked] = field(default_factory=list)
    answers: Future[list[Answer]] | None = None
    session: Session | None = None
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)  # of these two
    kept: KeptKeys | None = None

    @property
    def tokens_left(self) -> int:
        """How many tokens there is room for."""
        return self.room - len(self.tokens)

    def add(self, completion: Completion) -> None:
        """Append what an engine sampled."""
        self.tokens += completion.tokens.tolist()
        self.logprobs += completion.logprobs.tolist()
        self.reason = completion.finish_reason
        self.stops += self.reason == "stop_string"

    def add_output(self, asked: Asked, answer: Answer, output: str, tokens: Sequence[int]) -> None:
        """Append a tool's output, as far as there is room."""
        start = len(self.tokens)
        self.tokens += tokens[: self.tokens_left]
        self.logprobs += [0.0] * (len(self.tokens) - start)
        self.calls.append(ToolCall(start, len(self.tokens), asked.code, output, answer[1], answer[2]))
        self.quiet |= answer[1] == "limit"

    def take_kept(self) -> KeptKeys | None:
        """Give `kept` away."""
        kept, self.kept = self.kept, None
        return kept

    def open_session(self, tool: Tool) -> Session | None:
        """The session of its calls; None once it has ended, which a call may notice late."""
        if self.session is None and not self.ended:
            session = tool.session()
            with self.lock:
                if not self.ended:
                    self.session = session
                    return session
            session.close()
        return self.session

    def end(self) -> None:
        """Nothing more is sampled or called."""
        with self.lock:
            session, self.session, self.ended = self.session, None, True
        if session is not None:
            session.close()


class TurnSampler:
    """Samples responses that call a tool, with any engine."""

    room_to_keep: int  # of how many more responses keys may be kept

    def __init__(self, engine: RolloutEngine, tokenizer: Any, tool: Tool, params: Turns) -> None:
        """Raises UserError: the format needs tool messages, and the tokenizer's chat template has none."""
        self.engine, self.tokenizer, self.tool, self.params = engine, tokenizer, tool, params
        self.waited = 0.0  # seconds of the last `generate` in which calls ran and nothing was sampled
        self.format = make_format(params.format, tokenizer)

    def generate(self, prompts: Prompts, sampling: Sampling, seed: int, on_progress: Progress = None) -> Groups:
        """As `RolloutEngine.generate`; the tokens of the tool count in `sampling.max_tokens`."""
        count = sampling.samples
        self.room_to_keep, self.waited = self.engine.rollout.max_sequences, 0.0
        responses = [Response(prompt, sampling.max_tokens) for prompt in prompts for _ in range(count)]
        # With more responses than sessions none is opened before it is known which responses call.
        size = self.params.sessions
        early = len(responses) <= size
        pool = ThreadPoolExecutor(min(THREADS, size))
        try:
            going = self._wave(responses, prompts, sampling, seed, pool if early else None)
            _report(on_progress, len(responses) - len(going))
            for batch, first in enumerate(range(0, len(going), size)):
                self._finish(going[first : first + size], batch, sampling, seed, pool, on_progress)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for response in responses:
                response.end()
        completions = [self._completion(response) for response in responses]
        return [completions[first : first + count] for first in range(0, len(completions), count)]

    def own_words(self, completion: Completion) -> str:
        """What the model says in the response: its text without calls and outputs, which no reward may take for it."""
        texts, start = [], 0
        for call in completion.calls:
            turn = self.tokenizer.decode(completion.tokens[start : call.start].tolist(), skip_special_tokens=True)
            texts.append(self.format.own_words(turn))
            start = call.end
        last = self.tokenizer.decode(completion.tokens[start:].tolist(), skip_special_tokens=True)
        return "".join([*texts, last])

    def _finish(
        self,
        going: list[Response],
        batch: int,
        sampling: Sampling,
        seed: int,
        pool: ThreadPoolExecutor,
        on_progress: Progress,
    ) -> None:
        """Continue these responses until all have ended."""
        wave = 0
        while going:
            self._answer(going, pool)
            wave, still = wave + 1, []
            # Those that stop no more are a call of their own. Some come to it in this wave, and then wait for the next.
            parts = {
                quiet: [one for one in going if one.quiet == quiet and one.tokens_left > 0] for quiet in (False, True)
            }
            for quiet, part in parts.items():
                limits = tuple(response.tokens_left for response in part)
                if part:
                    kept = tuple(response.take_kept() for response in part)
                    self.room_to_keep += sum(keys is not None for keys in kept)
                    turn = replace(sampling, samples=1, max_tokens=max(limits), limits=limits, kept=kept)
                    prompts = [[*response.prompt, *response.tokens] for response in part]
                    still += self._wave(part, prompts, turn, wave_seed(seed, batch, wave, quiet), pool, quiet)
            _report(on_progress, len(going) - len(still))
            going = still

    def _wave(
        self,
        responses: Sequence[Response],
        prompts: Prompts,
        sampling: Sampling,
        seed: int,
        pool: ThreadPoolExecutor | None,
        quiet: bool = False,
    ) -> list[Response]:
        """Sample a turn of each response; those that go on, whose calls run already where there is a `pool`."""
        count = sampling.samples

        def call(prompt: int, sample: int, tokens: Sequence[int], reason: FinishReason, keep: Keep) -> None:
            response = responses[prompt * count + sample]
            response.asked = self._calls_of_turn(response, tokens, reason)
            if len(tokens) >= response.tokens_left:
                return
            if response.asked and pool is not None:
                response.answers = pool.submit(self._call, response)
            if (response.asked or reason == "stop_string") and self.room_to_keep:
                response.kept = keep()
                self.room_to_keep -= response.kept is not None

        sampling = replace(sampling, stop=() if quiet else self.format.stop)
        groups = self.engine.generate(prompts, sampling, seed, on_end=call)
        completions = [completion for group in groups for completion in group]
        going = []
        for response, completion in zip(responses, completions, strict=True):
            response.asked = self._calls_of_turn(response, completion.tokens.tolist(), completion.finish_reason)
            response.add(completion)
            response.quiet |= response.stops >= STOPS_PER_CALL * self.params.max_calls
            if response.tokens_left > 0 and (response.asked or response.reason == "stop_string"):
                going.append(response)
            else:
                response.end()
        return going

    def _calls_of_turn(self, response: Response, turn: Sequence[int], reason: FinishReason) -> list[Asked]:
        if response.quiet or reason != self.format.reason:
            return []
        return self.format.calls(self.tokenizer.decode(turn, skip_special_tokens=True))

    def _answer(self, going: Sequence[Response], pool: ThreadPoolExecutor) -> None:
        """Wait for the answers of all calls, and append them to their responses."""
        start = time.perf_counter()
        for response in going:
            if response.asked and response.answers is None:
                response.answers = pool.submit(self._call, response)
        running = {response.answers for response in going if response.answers is not None}
        while running:  # awake every second: `SamplerThread` ends a thread only where it runs Python
            done, running = wait(running, 1.0)
            for future in done:
                future.result()  # raises the first error
        self.waited += time.perf_counter() - start
        for response in going:
            if response.answers is None:
                continue
            answers = response.answers.result()
            outputs = [show_output(text, self.params.output_tokens, self.tokenizer) for text, _, _ in answers]
            texts = self.format.answers(outputs)
            for asked, answer, output, text in zip(response.asked, answers, outputs, texts, strict=True):
                tokens = self.tokenizer.encode(text, add_special_tokens=False)
                response.add_output(asked, answer, output, tokens)
            response.answers = None
            if response.tokens_left <= 0:
                self.room_to_keep += response.take_kept() is not None
                response.reason = "length"
                response.end()

    def _call(self, response: Response) -> list[Answer]:
        """Run the calls that the response asks for, one after another."""
        answers: list[Answer] = []
        seconds = sum(call.seconds for call in response.calls)
        for number, asked in enumerate(response.asked, len(response.calls)):
            if number >= self.params.max_calls:
                text = f"This call was not made: a response may make {self.params.max_calls}."
                answers.append((text, "limit", 0.0))
            elif seconds >= self.params.seconds:
                text = f"This call was not made: the calls of a response may take {self.params.seconds:g} seconds."
                answers.append((text, "limit", 0.0))
            elif asked.mistake:
                answers.append((asked.mistake, "error", 0.0))
            else:
                session = response.open_session(self.tool)
                if session is None:
                    break  # an error elsewhere has ended the sampling, and nobody reads the answers
                output = session.run(asked.code)
                seconds += output.seconds
                answers.append((output.text, output.status, output.seconds))
        return answers

    def _completion(self, response: Response) -> Completion:
        return Completion(
            np.array(response.tokens, np.int32),
            np.array(response.logprobs, np.float32),
            self.tokenizer.decode(response.tokens, skip_special_tokens=True),
            "stop" if response.reason == "stop" else "length",
            tuple(response.calls),
        )


def _report(on_progress: Progress, count: int) -> None:
    if on_progress and count:
        on_progress(count)
