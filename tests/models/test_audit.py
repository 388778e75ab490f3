"""One micro-batch of a 0.5-billion-parameter model as a GPU would run it, counted on tensors without values.

The budgets are in audit.json; `python -m tests.models.test_audit` writes them anew, for a reviewer to read.
"""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mathrl.learners.optimizer import FlatParameters
from mathrl.models.attention import DecodeCache
from mathrl.models.logprobs import make_decoder, prepare_language_model
from mathrl.models.packing import Group
from mathrl.models.prepared import compute_as
from mathrl.params.loss import LossKl
from mathrl.params.train import Rl
from mathrl.trainers.batch import Batch
from mathrl.trainers.policy_update import micro_batch_loss
from tests.models.audit import Audit, audited, meta_model

BUDGETS = Path(__file__).with_name("audit.json")
SMALL = "Qwen/Qwen2.5-0.5B-Instruct"
# Prompts of 64 tokens with one response each, or GSM8K's: 8 responses of 180 tokens to a prompt of 100.
CASES: dict[str, tuple[list[Group], bool]] = {
    "gsm8k, 15k tokens": ([Group([1] * 100, [[2] * 181] * 8)] * 10, False),
    "gsm8k, 15k tokens, checkpointing": ([Group([1] * 100, [[2] * 181] * 8)] * 10, True),
    "a row of 32k, checkpointing": ([Group([1] * 64, [[2] * (32768 - 63)])], True),
}


@dataclass
class Row:
    """What a loss needs of a group of rollouts."""

    group: Group

    @property
    def responses(self) -> Any:
        return self.group.responses


def policy_batch(groups: list[Group], rl: Rl) -> Batch:
    """A part of a batch; with log-probs of a reference where the loss has a KL to it."""
    lengths_S = torch.tensor([len(response) for group in groups for response in group.responses])
    old_N = torch.full((int(lengths_S.sum()),), -1.0)
    return Batch(
        [Row(group) for group in groups],  # type: ignore[misc]
        lengths_S,
        old_N,
        old_N.sin(),
        old_N < 0,
        reference_N=old_N if isinstance(rl.kl, LossKl) else None,
        weights_S=torch.ones(len(lengths_S)) / len(old_N),
    )


def measured(case: str) -> Audit:
    groups, recomputed = CASES[case]
    model = meta_model(SMALL, checkpointing=recomputed)
    FlatParameters(model)
    rl = Rl(loss={"type": "clip", "high": 0.28}, kl={"type": "loss", "coef": 0.001})
    part = policy_batch(groups, rl)
    return audited(model, groups, lambda: micro_batch_loss(model, part, rl, 0.001)[0].backward())


def figures(case: str) -> dict[str, float]:
    """The audit of a case, rounded as the file has it."""
    audit, tokens = measured(case), sum(group.packed_tokens for group in CASES[case][0])
    return {
        "kernels": audit.kernels,
        "float32_products": audit.float32_products,
        "host_syncs": audit.syncs,
        "copies_to_gpu": audit.copies,
        "gigabytes_moved": round(audit.bytes / 1e9, 1),
        "teraflop": round(audit.operations / 1e12, 2),
        "peak_gib": round(audit.peak / 2**30, 2),
        "h100_us_per_token": round(sum(audit.seconds.values()) / tokens * 1e6, 2),
        **{f"h100_us_per_token_{part}": round(value / tokens * 1e6, 2) for part, value in audit.seconds.items()},
    }


@pytest.mark.parametrize("case", CASES)
def test_a_micro_batch_stays_within_its_budget(case: str) -> None:
    budget, counted = json.loads(BUDGETS.read_text())[case], figures(case)
    assert counted["float32_products"] == counted["host_syncs"] == 0
    for name, value in budget.items():
        if not name.startswith("h100"):
            assert counted[name] == pytest.approx(value, rel=0.02), f"{name}: `python -m tests.models.test_audit`?"


@torch.no_grad()
def test_a_step_of_decoding_and_the_logits_that_it_samples_from() -> None:
    model = meta_model(SMALL)
    decoder: Any = make_decoder(model)
    with torch.device("meta"):
        layers = [(torch.empty(256, 2, 512, 64), torch.empty(256, 2, 512, 64)) for _ in range(24)]
        decoder.cache = DecodeCache(layers, torch.empty(256, 512), 300)
        decoder.positions_B, tokens_B = torch.zeros(256, dtype=torch.long), torch.zeros(256, dtype=torch.long)
        out: list[torch.Tensor] = []
        audit = audited(model, [], lambda: out.append(decoder.step(tokens_B)))
    assert out[0].shape == (256, 151_936) and out[0].dtype == torch.float32
    assert audit.syncs == audit.copies == 0 and audit.kernels == 589  # benchmarks/gpu/README.md


def test_an_audit_sees_a_float32_product_and_a_table_of_probabilities() -> None:
    """The counts can fail: the kernels of a CPU, float32 tables of [heads, queries, keys], are noticed."""
    groups = [Group([1] * 8, [[2] * 200] * 2)]
    model = meta_model(SMALL)
    compute_as(model, replace(prepare_language_model(model), kernel="cpu"))
    part = policy_batch(groups, Rl())
    audit = audited(model, groups, lambda: micro_batch_loss(model, part, Rl(), 0.0)[0].backward())
    assert audit.float32_products >= 24 * 6 and audit.names["_softmax"] >= 24


def test_a_value_on_the_host_ends_an_audit() -> None:
    def sync() -> None:
        float(torch.empty((), device="meta"))

    with pytest.raises(RuntimeError):
        audited(meta_model(SMALL), [], sync)


if __name__ == "__main__":
    BUDGETS.write_text(json.dumps({case: figures(case) for case in CASES}, indent=2) + "\n")
    sys.stdout.write(BUDGETS.read_text())
