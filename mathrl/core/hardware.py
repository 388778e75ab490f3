"""What a process computes on, as a value: configurations are made from it, so a test makes a GPU's on any machine."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Hardware:
    """The device of a process: `memory` is that of one GPU in bytes, `count` the GPUs of the machine.

    Example:
        Hardware("cuda", "NVIDIA H100 80GB HBM3", memory=85_028_765_696, count=8)
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    name: str = ""
    memory: int = 0
    count: int = 0

    @property
    def is_gpu(self) -> bool:
        return self.kind == "cuda"


CPU = Hardware()
