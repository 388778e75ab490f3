"""Tools that a response may call: where the model's Python code runs, and within which limits."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

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
