"""The engine that samples responses: section rollout."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mathrl.params.section import Section, without_login


class Vllm(Section):
    """A vLLM engine: in the stage's own processes, and what `mathrl serve` starts a server with."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Of weights and cache; auto: model.precision."
    )
    max_model_length: int | None = Field(
        None, ge=1, description="Longest prompt plus response, in tokens; empty: the model's."
    )
    tensor_parallel: int = Field(
        1, ge=1, description="Processes (GPUs) that share one engine; run.processes is a multiple of it."
    )
    memory_share: float = Field(0.4, gt=0, lt=1, description="Of a GPU's memory, for weights and cache.")
    cache_gib: int | None = Field(
        None, ge=1, description="Size of the key-value cache; empty: from memory_share, on a CPU 1 GiB."
    )
    sleep: bool = Field(
        False, description="Give weights and cache back to the GPU during the update (no effect on a CPU)."
    )
    eager: bool | None = Field(
        None, description="Neither torch.compile nor CUDA graphs; empty: so on a CPU, not on a GPU."
    )


class Servers(Section):
    """vLLM servers, each started by `mathrl serve`, on this machine or on others."""

    urls: tuple[Annotated[str, AfterValidator(without_login)], ...] = Field(
        (), description="Such as http://127.0.0.1:8001; requests go to the idlest."
    )
    at_a_time: int = Field(64, ge=1, description="Requests (prompts) in flight at a server, from a process.")
    timeout_seconds: float = Field(600.0, gt=0, description="A server that takes longer for a request counts as dead.")
    wait_seconds: float = Field(300.0, ge=0, description="How long to wait when no server is alive.")
    folder: str | None = Field(
        None, description="A folder that trainer and servers share, for the weights; empty: in /tmp."
    )
    bucket_mb: int = Field(512, ge=1, description="Size of a file of weights.")


class Rollout(Section):
    """The engine that samples responses."""

    engine: Literal["torch", "vllm", "vllm_server"] = Field(
        "torch", description="torch: the trainer's own model; vllm: in this process; vllm_server: over HTTP."
    )
    max_sequences: int = Field(1024, ge=1, description="Responses generated at a time in one process.")
    vllm: Vllm = Vllm()
    servers: Servers = Servers()
    canary_tolerance: float | None = Field(
        None,
        gt=0,
        description="Mean difference of a probe's log-probs between sampler and trainer, after a sync, that "
        "stops the run; empty: 0.0001 in float32, 0.05 in less.",
    )
    mismatch_limit: float = Field(
        1.05, gt=1, description="Of the mean of exp |log-prob difference| between sampler and trainer."
    )
    on_mismatch: Literal["warn", "stop"] = Field("warn", description="What happens above mismatch_limit.")

    @model_validator(mode="after")
    def _servers_are_named(self) -> "Rollout":
        if self.engine == "vllm_server" and not self.servers.urls:
            raise ValueError(
                "engine vllm_server needs servers.urls, such as [http://127.0.0.1:8001]; "
                "`mathrl serve MODEL --port 8001` starts one"
            )
        for url in self.servers.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"servers.urls: {url!r} is no URL; write it as http://127.0.0.1:8001")
        return self
