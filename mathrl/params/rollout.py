"""The engine that samples responses: section rollout."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mathrl.params.section import Section, without_login
from mathrl.params.tools import NoTool, Tools
from mathrl.params.turns import Turns


class Vllm(Section):
    """A vLLM engine, in the stage's own processes or in the server that `mathrl serve` starts."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Precision of weights and cache; auto: model.precision."
    )
    max_model_length: int | None = Field(
        None,
        ge=1,
        description="Maximum length of prompt plus response, in tokens; null: what the stage's max_tokens need (a "
        "server: the model's).",
    )
    tensor_parallel: int = Field(
        1, ge=1, description="Tensor-parallel ranks (GPUs) per engine; run.processes must be a multiple."
    )
    memory_share: float = Field(0.4, gt=0, lt=1, description="Share of the GPU's memory for weights and KV cache.")
    cache_gib: int | None = Field(None, ge=1, description="KV cache, in GiB; null: from memory_share; on a CPU 1 GiB.")
    sleep: bool = Field(
        False, description="Free the engine's GPU memory during the update (RL on a GPU; no effect elsewhere)."
    )
    eager: bool | None = Field(None, description="Disable torch.compile and CUDA graphs; null: on a CPU only.")


class Servers(Section):
    """vLLM servers: those that the stage starts on its machine, or those that `mathrl serve` started at addresses."""

    start: int = Field(
        0,
        ge=0,
        description="Number of servers that the stage starts and ends itself, each on the next vllm.tensor_parallel "
        "GPUs after those of run.processes (on a CPU: one process each); 0: use urls.",
    )
    urls: tuple[Annotated[str, AfterValidator(without_login)], ...] = Field(
        (), description="Addresses, such as http://127.0.0.1:8001; requests go to the least loaded server."
    )
    at_a_time: int = Field(64, ge=1, description="Maximum requests (prompts) in flight per server and rank.")
    timeout_seconds: float = Field(
        600.0,
        gt=0,
        description="Seconds without progress (no token of any request) after which a server with requests counts as "
        "dead; also the limit of a weight sync.",
    )
    wait_seconds: float = Field(
        300.0, ge=0, description="Seconds without a live server, also at the start, after which the run stops."
    )
    weights: Literal["auto", "files", "nccl", "ipc"] = Field(
        "auto",
        description="How weights reach servers. files: safetensors in folder; nccl: from GPU to GPU; ipc: through the "
        "memory of a GPU that server and rank share; auto: nccl on GPUs (ipc for a server that was started with it), "
        "files on a CPU. Adapters are always files.",
    )
    folder: str | None = Field(
        None, description="Folder shared by trainer and servers for weight files; null: below /tmp."
    )
    bucket_mb: int = Field(
        512, ge=1, description="Size of the files that a weight sync writes, or of its GPU buffers, in MB."
    )


class Rollout(Section):
    """The engine that samples responses."""

    engine: Literal["auto", "torch", "vllm", "vllm_server"] = Field(
        "auto",
        description="torch: the trainer's own model; vllm: vLLM in this process; vllm_server: vLLM over HTTP; auto: "
        "vllm for a pretrained model on a GPU where vLLM is installed, else torch.",
    )
    max_sequences: int = Field(1024, ge=1, description="Maximum number of responses generated at a time per rank.")
    tool: Tools = Field(NoTool(), description="Tool that responses may call: none, a sandbox here, or a server's.")
    turns: Turns = Turns()
    vllm: Vllm = Vllm()
    servers: Servers = Servers()
    canary_tolerance: float | None = Field(
        None,
        gt=0,
        description="Maximum mean difference of the probe's log-probs between sampler and trainer after a weight sync; "
        "above it the run stops. Null: 0.0001 in float32, 0.05 in lower precision.",
    )
    mismatch_limit: float = Field(
        1.05, gt=1, description="Limit of the mean of exp(|log-prob difference|) between sampler and trainer."
    )
    on_mismatch: Literal["warn", "stop"] = Field("warn", description="Action when mismatch_limit is exceeded.")

    @model_validator(mode="after")
    def _servers_are_named(self) -> "Rollout":
        if self.engine == "vllm_server" and not self.servers.urls and not self.servers.start:
            raise ValueError(
                "engine vllm_server needs servers.start, the number of servers to start, or servers.urls, such as "
                "[http://127.0.0.1:8001]; `mathrl serve MODEL --port 8001` starts one"
            )
        if self.servers.start and self.servers.urls:
            raise ValueError("servers.start starts servers and servers.urls names others: set one of them")
        for url in self.servers.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"servers.urls: {url!r} is not a URL; write it as http://127.0.0.1:8001")
        return self
