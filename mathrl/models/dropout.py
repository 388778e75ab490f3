"""Dropout off, so that a model in training computes what it computes when it samples."""

from torch import nn


def disable_dropout(network: nn.Module) -> None:
    """Set every probability of dropout, of a skipped layer and of a router's noise to zero, in place.

    TRL's `disable_dropout` (trl/trainer/utils.py) sets those of nn.Dropout; attention keeps its own as a number. The
    configuration, which is exported, stays as it is.
    """
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and _is_probability(name):
                setattr(module, name, 0.0)


def _is_probability(name: str) -> bool:
    """
    >>> [_is_probability(name) for name in ("attention_dropout", "layerdrop", "router_jitter_noise", "scaling")]
    [True, True, True, False]
    """
    return any(part in name for part in ("dropout", "layerdrop", "jitter")) or name == "drop"
