"""The batches that both sides of the DeepSpeed comparison train on."""

import torch

STEPS, SEQUENCES, LENGTH = 10, 8, 48


def batches(vocabulary: int) -> list[torch.Tensor]:
    """Ten [8, 48] batches of random token ids, the same in every process."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocabulary, (SEQUENCES, LENGTH), generator=generator) for _ in range(STEPS)]
