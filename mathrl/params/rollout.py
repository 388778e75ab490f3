"""Section rollout: the engine that samples responses, the tool that they may call, and how they call it."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mathrl.params.section import Section, is_url, without_login


class NoTool(Section):
    """Responses call no tool."""

    kind: Literal["none"] = "none"


class Limits(Section):
    """Limits of each call, whatever runs it."""

    wall_seconds: float = Field(
        10.0, gt=0, le=600, description="Wall time per call; at its end the session's interpreter is killed."
    )
    output_characters: int = Field(
        2000, ge=300, le=100_000, description="Characters of output per call; the middle of longer output is left out."
    )
    memory_mb: int = Field(1024, ge=64, description="Memory per session, in MB, beside the imported libraries.")


class Bubblewrap(Limits):
    """A sandbox on this machine: bubblewrap with seccomp, without network, files or environment of the machine."""

    kind: Literal["bubblewrap"] = "bubblewrap"
    cpu_seconds: int = Field(5, ge=1, le=600, description="Processor time per call and process.")
    processes: int = Field(8, ge=1, le=256, description="Processes and threads at a time per session.")
    file_mb: int = Field(16, ge=1, description="Size of all files that a session writes, in MB; they are in memory.")
    open_files: int = Field(64, ge=16, le=1024, description="Open files per process.")
    calls: int = Field(
        0, ge=0, le=1024, description="Calls that run at a time, others wait their turn; 0: one per processor."
    )


class Http(Limits):
    """A server that speaks SandboxFusion's `run_code`; the server sets the limits of the sandbox itself."""

    kind: Literal["http"] = "http"
    url: Annotated[str, AfterValidator(is_url), AfterValidator(without_login)] = Field(
        description="Address of the server, without /run_code, such as http://127.0.0.1:8080."
    )
    requests: int = Field(16, ge=1, le=1024, description="Requests in flight at a time.")
    retries: int = Field(2, ge=0, le=10, description="Further attempts after a refused connection or a server error.")


Tools = Annotated[NoTool | Bubblewrap | Http, Field(discriminator="kind")]


CallFormat = Literal["python_block", "tool_call"]


class Turns(Section):
    """How responses call the tool; no effect without a tool."""

    format: CallFormat = Field(
        "python_block",
        description="What a call looks like. python_block: a ```python block, answered by an ```output block; "
        "tool_call: JSON in <tool_call> tags (Hermes, Qwen), answered in the chat template's tool role.",
    )
    max_calls: int = Field(
        4, ge=1, le=64, description="Maximum number of calls per response; a further one is refused."
    )
    output_tokens: int = Field(
        256, ge=8, description="Maximum tokens of a call's output; longer output is cut, which the model is told."
    )
    sessions: int = Field(
        512,
        ge=1,
        description="Sessions of the tool that are open at a time, one per response that called; where more responses "
        "are sampled at once, those that call go on in batches of this size.",
    )
    seconds: float = Field(
        60.0, gt=0, description="Seconds that all calls of a response may take; a call after that is refused."
    )


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
