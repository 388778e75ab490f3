"""Responses on a CPU behind verl's interfaces of a rollout engine (see verl_on_cpu.py)."""

from collections.abc import Sequence
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput


class CpuServer:
    """Samples token by token from the policy's model, with the weights that the trainer has handed over."""

    def __init__(self, folder: str, longest: int, seed: int) -> None:
        torch.set_num_threads(1)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        ends = GenerationConfig.from_pretrained(folder).eos_token_id
        self.ends = {*ends} if isinstance(ends, list) else {ends}
        self.longest, self.steps = longest, 0
        self.generator = torch.Generator().manual_seed(seed)

    async def load(self, weights: dict[str, torch.Tensor], steps: int | None) -> None:
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        self.steps = steps or 0

    async def generate(
        self, request_id: str, prompt_ids: Sequence[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        tokens, logprobs = self.sampled(prompt_ids, sampling_params["temperature"])
        extra = {"global_steps": self.steps}
        return TokenOutput(token_ids=tokens, log_probs=logprobs, stop_reason="completed", extra_fields=extra)

    @torch.no_grad()
    def sampled(self, prompt: Sequence[int], temperature: float) -> tuple[list[int], list[float]]:
        tokens, logprobs, cache = list[int](), list[float](), None
        given = torch.tensor([list(prompt)])
        while len(tokens) < self.longest and (not tokens or tokens[-1] not in self.ends):
            output = self.model(given, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            scores = (output.logits[0, -1].float() / (temperature or 1.0)).log_softmax(-1)
            drawn = torch.multinomial(scores.exp(), 1, generator=self.generator) if temperature else scores.argmax(-1)
            tokens.append(int(drawn))
            logprobs.append(float(scores[tokens[-1]]))
            given = torch.tensor([[tokens[-1]]])
        return tokens, logprobs

    async def wake_up(self, *_: Any, **__: Any) -> None: ...
    async def sleep(self, *_: Any, **__: Any) -> None: ...
    async def clear_kv_cache(self) -> None: ...


def name_of(replica: int) -> str:
    return f"cpu_server_{replica}"


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    async def launch_servers(self) -> None:
        model = omega_conf_to_dataclass(self.model_config)
        options = {"name": name_of(self.replica_rank), "max_concurrency": self.max_concurrency}
        server = (
            ray.remote(CpuServer)
            .options(**options)
            .remote(model.local_path, self.config.response_length, self.config.seed + self.replica_rank)
        )
        self.servers, self._server_handle, self._server_address = [server], server, name_of(self.replica_rank)


class CpuAdapter(BaseRollout):  # type: ignore[misc]
    """In a worker of the trainer: hands its weights to the server of its replica."""

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, global_steps: int | None = None, **_: Any) -> None:
        collected = {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in weights}
        server = ray.get_actor(name_of(torch.distributed.get_rank()))
        await server.load.remote(collected, global_steps)
