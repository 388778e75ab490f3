"""Which weights Muon trains and which AdamW, in models of several families, and Muon on experts' weights."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import nn

from mathrl.learners import optimizer
from mathrl.learners.distributed import Ranks
from mathrl.learners.optimizer import FlatParameters, MatrixMuon, OptimizerSet, split_parameters
from mathrl.models.scores import make_scorer
from mathrl.models.small_copy import small_config
from mathrl.models.transformers_import import AutoConfig, AutoModelForCausalLM
from mathrl.params.optimizer import Muon
from tests.trainers.small import policy

EMBEDDINGS = {
    "gpt2": {"transformer.wte.weight", "transformer.wpe.weight"},
    "qwen3_moe": {"model.embed_tokens.weight", "lm_head.weight"},
    "falcon_mamba": {"backbone.embeddings.weight"},
    "gpt_oss": {"model.embed_tokens.weight", "lm_head.weight"},
}


def small(family: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(small_config(AutoConfig.for_model(family)))


@pytest.mark.parametrize("family", EMBEDDINGS)
def test_hidden_matrices_and_experts_are_muons(family: str) -> None:
    """A table of positions is none, no bias (gpt-oss's experts' have two dimensions), no convolution, no A_log."""
    model = small(family)
    named = dict(model.named_parameters())
    names = {id(weight): name for name, weight in named.items()}
    muons, rest = ({names[id(weight)] for weight in part} for part in split_parameters(model, named))
    flat = {name for name, weight in named.items() if weight.dim() == 1}
    others = {name for name in named if name.endswith(("_bias", "A_log", "conv1d.weight"))}
    assert rest == EMBEDDINGS[family] | flat | others
    assert any(".experts." in name for name in muons) == (family in ("qwen3_moe", "gpt_oss"))
    assert any(named[name].dim() > 1 for name in others) == (family in ("falcon_mamba", "gpt_oss"))


def test_the_head_of_a_scorer_is_adamws() -> None:
    scorer = make_scorer(policy()[0])
    named = dict(scorer.named_parameters())
    muons, rest = split_parameters(scorer, named)
    head = named["score.weight"]
    assert head.dim() == 2 and muons and any(weight is head for weight in rest)


def test_each_expert_is_stepped_as_a_matrix_alone() -> None:
    """Three steps of one weight [experts, out, in] are those of as many matrices, to the bit; the state is one."""
    generator = torch.Generator().manual_seed(1)
    start, gradients = (torch.randn(*size, generator=generator) for size in ((3, 6, 4), (3, 3, 6, 4)))
    whole = nn.Parameter(start.clone())
    parts = [nn.Parameter(matrix.clone()) for matrix in start]
    arguments = {"lr": 0.1, "weight_decay": 0.2}
    together, apart = MatrixMuon([whole], **arguments), torch.optim.Muon(parts, **arguments)
    for gradient in gradients:
        whole.grad = gradient.clone()
        for part, own in zip(parts, gradient, strict=True):
            part.grad = own.clone()
        together.step()
        apart.step()
    assert torch.equal(whole, torch.stack(list(parts))) and not torch.allclose(whole, start, atol=0.1)
    assert together.state[whole]["momentum_buffer"].shape == start.shape and len(together.state) == 1
    flattened = nn.Parameter(start.flatten(0, 1).clone())
    wrong = torch.optim.Muon([flattened], **arguments)
    for gradient in gradients:
        flattened.grad = gradient.flatten(0, 1).clone()
        wrong.step()
    assert not torch.allclose(flattened.view_as(whole), whole, atol=0.01), "one matrix of all experts is another step"


class Threads(Ranks):
    """Three ranks that are threads of this process."""

    met, sent = Barrier(3), dict[int, torch.Tensor]()

    def __init__(self, rank: int) -> None:
        super().__init__(torch.device("cpu"))
        self.rank, self.world = rank, 3

    def sum_(self, tensor: torch.Tensor) -> None:
        self.sent[self.rank] = tensor.clone()
        self.met.wait()
        tensor.copy_(sum(self.sent.values()))
        self.met.wait()


def test_ranks_share_the_matrices_and_end_as_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and state are to the bit those of one rank; each matrix is stepped at one rank, and none has all."""
    monkeypatch.setattr(optimizer, "SENT", 50)
    generator = torch.Generator().manual_seed(2)
    shapes = [(3, 6, 4), (5, 4), (2, 7), (6, 6)]
    starts = [torch.randn(*shape, generator=generator) for shape in shapes]
    gradients = [[torch.randn(*shape, generator=generator) for shape in shapes] for _ in range(3)]

    def trained(ranks: Ranks | None) -> MatrixMuon:
        weights = [nn.Parameter(start.clone()) for start in starts]
        muon = MatrixMuon(weights, ranks, lr=0.1, weight_decay=0.2)
        for step in gradients:
            for weight, gradient in zip(weights, step, strict=True):
                weight.grad = gradient.clone()
            muon.step()
        return muon

    def values(muon: MatrixMuon) -> list[torch.Tensor]:
        weights = muon.param_groups[0]["params"]
        return [*weights, *(muon.state[weight]["momentum_buffer"] for weight in weights)]

    alone = trained(None)
    with ThreadPoolExecutor(3) as pool:
        shared = list(pool.map(trained, map(Threads, range(3))))
    for muon in shared:
        assert all(map(torch.equal, values(muon), values(alone)))
    assert sorted(number for muon in shared for number in muon.share) == sorted(alone.share) == list(range(6))
    assert all(0 < len(muon.share) < 6 for muon in shared)


def test_experts_momentum_is_kept_and_restored() -> None:
    """Two steps, and one, a restart, one more: the same weights to the bit."""

    def made() -> tuple[FlatParameters, OptimizerSet]:
        model = small("qwen3_moe")
        flat = FlatParameters(model)
        return flat, OptimizerSet(model, flat, Muon(lr=0.01, warmup_steps=0), 10)

    flat, optimizer = made()
    flat.gradients.normal_(generator=torch.Generator().manual_seed(2))
    optimizer.step(0)
    weights, state = flat.weights.clone(), {name: value.clone() for name, value in optimizer.state().items()}
    optimizer.step(1)
    other, resumed = made()
    other.set_weights(weights)
    other.gradients.copy_(flat.gradients)
    resumed.load_state(state)
    resumed.step(1)
    assert torch.equal(other.weights, flat.weights) and not torch.equal(weights, flat.weights)
    assert any(value.dim() == 3 for value in state.values())
