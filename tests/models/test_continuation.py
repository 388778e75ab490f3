"""Prompts whose first tokens were run in an earlier batch: the rest alone gives the logits of the whole."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from mathrl.models import decode, trial
from mathrl.models.decode import CachedDecoder, ContinuedLayout, KeptKeys, PackedDecoder, RecomputingDecoder
from mathrl.models.logprobs import prepare_language_model

PROMPTS = [[5, 6, 7], [8], list(range(3, 24)), [9, 10]]
LONGER = [[*PROMPTS[0], 11, 12], [*PROMPTS[1], *range(3, 20)], [*PROMPTS[2], 4], [*PROMPTS[3], 7, 7, 7, 8]]
NEXT = torch.tensor([3, 4, 5, 6])
# Sums in another order, in float32, of logits between -20 and 20.
TOLERANCE = 2e-5


@pytest.fixture
def model(network: Callable[..., Any]) -> Any:
    model = network()
    assert prepare_language_model(model).packed
    return model


def after(model: Any, kept: list[KeptKeys | None], samples: int = 1) -> Tensor:
    """Logits after the longer prompts and after one more token."""
    decoder = PackedDecoder(model)
    first = decoder.prefill(LONGER, samples, 4, kept)
    return torch.stack([first, decoder.step(NEXT.repeat_interleave(samples))])


def kept_of(model: Any, prompts: list[list[int]]) -> list[KeptKeys | None]:
    decoder = PackedDecoder(model)
    decoder.prefill(prompts, 1, 4)
    return [decoder.keys_of_row(row) for row in range(len(prompts))]


@torch.no_grad()
def test_the_rest_of_a_prompt_gives_the_logits_of_the_whole(model: Any) -> None:
    whole = after(model, [])
    assert torch.allclose(after(model, kept_of(model, PROMPTS)), whole, rtol=0, atol=TOLERANCE)
    some = kept_of(model, PROMPTS)
    some[1] = some[2] = None  # read as a whole beside the others
    assert torch.allclose(after(model, some), whole, rtol=0, atol=TOLERANCE)
    samples = after(model, kept_of(model, PROMPTS), samples=3)
    assert torch.allclose(samples, whole.repeat_interleave(3, 1), rtol=0, atol=TOLERANCE)
    other = kept_of(model, [PROMPTS[1], PROMPTS[0], PROMPTS[2], PROMPTS[3]])
    wrong = after(model, [kept_of(model, [[5, 6, 8]])[0], *other[1:2], *other[2:]])
    assert not torch.allclose(wrong, whole, rtol=0, atol=100 * TOLERANCE)  # the test would see another's keys


@torch.no_grad()
def test_what_is_kept_while_decoding_is_what_was_read_so_far(model: Any) -> None:
    decoder = PackedDecoder(model)
    decoder.prefill(PROMPTS, 1, 4)
    decoder.step(torch.tensor([11, 3, 4, 7]))
    decoder.keep(torch.tensor([0, 1, 3]))
    decoder.step(torch.tensor([12, 4, 7]))
    kept = [decoder.keys_of_row(0), decoder.keys_of_row(1), None, decoder.keys_of_row(2)]
    assert [keys.tokens for keys in kept if keys] == [5, 3, 4]
    longer = [[*LONGER[0], 3], *LONGER[1:]]
    whole = PackedDecoder(model).prefill(longer, 1, 4)
    assert torch.allclose(PackedDecoder(model).prefill(longer, 1, 4, kept), whole, rtol=0, atol=TOLERANCE)
    assert not any(keys.layers for keys in kept if keys)  # their memory is released


@torch.no_grad()
def test_continued_prompts_are_read_in_several_passes(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = after(model, [])
    monkeypatch.setattr(decode, "MOST_PROMPT_TOKENS", 8)
    assert torch.allclose(after(model, kept_of(model, PROMPTS)), whole, rtol=0, atol=TOLERANCE)


def test_the_other_decoders_keep_nothing_and_read_again(model: Any) -> None:
    for kind in (CachedDecoder, RecomputingDecoder):
        decoder = kind(model)
        with torch.no_grad():
            decoder.prefill(PROMPTS, 1, 4)
        assert decoder.keys_of_row(0) is None


def test_an_architecture_that_continues_wrongly_is_not_sampled_packed(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = trial.trial_groups()
    with torch.no_grad():
        expected = trial.alone(model, groups)
        assert trial.continues(model, groups, expected)
        attend = ContinuedLayout.attend

        def without_mask(self: ContinuedLayout, *args: Any) -> Tensor:
            self.visible_PSC = torch.ones_like(self.visible_PSC)
            return attend(self, *args)

        monkeypatch.setattr(ContinuedLayout, "attend", without_mask)
        assert not trial.continues(model, groups, expected)
