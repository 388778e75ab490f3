"""The module whose forward pass is whatever is computed of a network, for libraries whose hooks are those of a root."""

from collections.abc import Callable

from torch import Tensor, nn


class Pass(nn.Module):
    """The root that DeepSpeed and FSDP wrap: their hooks run before and after what is computed."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, compute: Callable[[], Tensor]) -> Tensor:
        return compute()
