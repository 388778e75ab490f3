"""Whether mathrl computes an architecture right: tried on a small random copy before a model trains or samples.

Each sequence alone, through transformers' own forward pass without padding, packing or cache, is what everything is
compared with: log-probs and gradients of a padded and of a packed batch, train mode, and the log-probs with which the
torch engine would sample. What differs is not used; a model for which nothing is left is refused.

A result is kept per architecture, small configuration and library version in the user's cache folder.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mathrl.core.files import write_json
from mathrl.models.attention import NAME
from mathrl.models.decode import CachedDecoder, Decoder, PackedDecoder, RecomputingDecoder
from mathrl.models.device import exact_float32
from mathrl.models.dropout import disable_dropout
from mathrl.models.packing import Group
from mathrl.models.prepared import Sampling
from mathrl.models.small_copy import VOCABULARY, small_config, small_copy, two_layers

Outputs = Callable[[Any, Sequence[Group]], Tensor]
# Of log-probs in float32; a wrong mask differs by more than 0.1.
TOLERANCE = 1e-3
DECODERS: dict[Sampling, Callable[[Any], Decoder]] = {
    "packed": PackedDecoder,
    "cached": CachedDecoder,
    "recomputed": RecomputingDecoder,
}
# What a model's own code raises at inputs that it does not expect (LookupError: a missing key or index).
ERRORS = (TypeError, ValueError, LookupError, AttributeError, AssertionError, ImportError, RuntimeError)


@dataclass(frozen=True)
class Trial:
    """How mathrl computes a model; `refused` says why it does not, `not_packed` why it pads.

    `plain_head`: its logits are the output head's output, neither scaled nor capped after it.

    Example: Trial("Gemma2ForCausalLM", "cached", not_packed="some of its layers see a window of tokens only").
    """

    architecture: str
    sampling: Sampling = "cached"
    not_packed: str = ""
    refused: str = ""
    plain_head: bool = False

    def sentence(self) -> str:
        """How the model trains and samples, or why it is refused and what to do instead."""
        if self.refused:
            return (
                f"{self.architecture} is refused: {self.refused}. mathrl trains decoder-only language models; "
                "docs/reference/models.md lists those that it computes right"
            )
        samples = {"packed": "packed", "cached": "with the model's own cache", "recomputed": "without a cache"}
        trains = f"padded ({self.not_packed})" if self.not_packed else "packed"
        return f"{self.architecture} trains {trains} and the torch engine samples from it {samples[self.sampling]}"

    def costs(self) -> str:
        """What not packing and no cache cost; "" where there is both, or nothing is computed."""
        if self.refused:
            return ""
        padding = (
            "Every response is computed with a copy of its prompt and padded to the longest of its micro-batch, which "
            "takes 2 to 10 times the time and memory of a packed model (Qwen, Llama)"
        )
        recomputing = (
            "Every sampled token takes a forward pass over its whole sequence; set rollout.engine to vllm if vLLM has "
            "the architecture"
        )
        return ". ".join([padding] * bool(self.not_packed) + [recomputing] * (self.sampling == "recomputed"))


def known_trial(model: Any, by_padding: Outputs, by_packing: Outputs) -> Trial:
    """The trial of a causal LM's architecture, run now unless its result is kept; the outputs are log-probs."""
    # Code that comes with a model can change under its name: nothing of it is kept.
    file = _file(model) if type(model).__module__.startswith("transformers.") else None
    trial = _read(file) if file else None
    if trial is None:
        trial = run_trial(model, by_padding, by_packing)
        if file:
            with suppress(OSError):  # a read-only home: tried again next time
                write_json(file, asdict(trial))
    return trial


def _read(file: Path) -> Trial | None:
    try:
        return Trial(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError):
        return None


def _file(model: Any) -> Path | None:
    """Where the result of this architecture is kept; None where no small configuration of it can be made."""
    try:
        config = small_config(model.config).to_dict()
    except ERRORS:
        return None
    for name in ("_name_or_path", "transformers_version", "dtype", "architectures", "id2label", "label2id"):
        config.pop(name, None)
    facts = [config, model.config._attn_implementation, model.device.type, _versions()]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mathrl" / "architectures"
    return folder / f"{type(model).__name__}-{digest}.json"


@cache
def _versions() -> list[str]:
    """Of the libraries, and the bytes of this room."""
    code = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py"))))
    return [version("transformers"), version("torch"), code.hexdigest()]


def run_trial(model: Any, by_padding: Outputs, by_packing: Outputs) -> Trial:
    """Try an architecture on a small copy of the model: 0.05 to 0.5 seconds on one core."""
    name = type(model).__name__
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.enable_grad(), exact_float32(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        groups, reason = trial_groups(), ""
        for shrink in (small_config, two_layers):
            try:
                made = small_copy(model, shrink)
                disable_dropout(made)
                expected = _with_gradient(alone, made, groups)
                break
            except ERRORS as error:
                reason = reason or f"a small copy of it does not compute log-probs of tokens ({_line(error)})"
        else:
            return Trial(name, "recomputed", refused=reason)
        refused = _refusal(made, groups, expected, by_padding)
        if refused:
            return Trial(name, "recomputed", refused=refused)
        not_packed = why_not_packed(made, lambda: _same(expected, by_packing, made, groups))
        attention = made.config._attn_implementation
        if not not_packed:
            made.config._attn_implementation = NAME
            if decodes(made, "packed", groups, expected[0]) and continues(made, groups, expected[0]):
                return Trial(name, "packed", plain_head=has_plain_head(made))
            made.config._attn_implementation = attention
        sampling: Sampling = "cached" if decodes(made, "cached", groups, expected[0]) else "recomputed"
        return Trial(name, sampling, not_packed=not_packed, plain_head=has_plain_head(made))


def scorer_takes_packed(scorer: Any, by_padding: Outputs, by_packing: Outputs) -> bool:
    """Whether a model with a score per token can be computed packed, tried on a small copy; a warning if not."""
    with torch.no_grad(), exact_float32():
        try:
            made, groups = small_copy(scorer), trial_groups()
            expected = by_padding(made, groups)
            reason = why_not_packed(made, lambda: near(by_packing(made, groups), expected))
        except ERRORS as error:
            reason = f"no small copy of it can be made to try it on ({_line(error)})"
    if reason:
        trial = Trial(type(scorer).__name__, not_packed=reason)
        warnings.warn(f"{trial.architecture} is computed padded ({reason}). {trial.costs()}", stacklevel=4)
    return not reason


@torch.no_grad()
def has_plain_head(made: Any) -> bool:
    """Whether a small copy's logits are its output head's output; changes the head's weights."""
    try:
        head = made.get_output_embeddings()
        head.weight.mul_(30)  # large logits, so that even a high cap shows
        ids = torch.arange(8, device=made.device)[None]
        hidden = made.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        logits = made(input_ids=ids, use_cache=False).logits
        return type(head) is torch.nn.Linear and torch.allclose(head(hidden), logits, atol=1e-4)
    except ERRORS:
        return False


def trial_groups() -> list[Group]:
    """Two prompts with several responses, longer than the windows of a small copy and than a chunk of 64 tokens."""
    generator = torch.Generator().manual_seed(0)

    def draw(count: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()

    return [
        Group(draw(5), (draw(4), draw(12))),
        Group(draw(67), (draw(12), draw(6))),
        Group(draw(3), (draw(12), draw(2))),
    ]


def alone(model: Any, groups: Sequence[Group]) -> Tensor:
    """Log-probs [N] of each response alone: transformers' own forward, no padding, no cache."""
    logprobs = []
    for group in groups:
        for response in group.responses:
            ids = torch.tensor([[*group.prompt, *response]], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0]
            start = len(group.prompt) - 1
            rows = logits[start : start + len(response)].float().log_softmax(-1)
            logprobs.append(rows.gather(1, ids[0, len(group.prompt) :, None])[:, 0])
    return torch.cat(logprobs)


def _with_gradient(outputs: Outputs, model: Any, groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
    """The outputs, and the gradient of a weighted sum of them by all weights in one row."""
    model.zero_grad()
    values = outputs(model, groups)
    (values * torch.linspace(-1, 1, len(values), device=values.device)).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad.flatten() for weight in model.parameters() if weight.grad is not None]
    return values.detach(), torch.cat(gradients)


def near(values: Tensor, expected: Tensor) -> bool:
    """False for a NaN."""
    return bool(((values - expected).abs() <= TOLERANCE * (1 + expected.abs())).all())


def _same(expected: tuple[Tensor, Tensor], outputs: Outputs, model: Any, groups: Sequence[Group]) -> bool:
    values, gradient = _with_gradient(outputs, model, groups)
    apart = (gradient - expected[1]).norm() if len(gradient) == len(expected[1]) else torch.inf
    return near(values, expected[0]) and bool(apart <= 10 * TOLERANCE * expected[1].norm())


def _refusal(model: Any, groups: Sequence[Group], expected: tuple[Tensor, Tensor], by_padding: Outputs) -> str:
    """Why the model cannot be trained even with padding; "" if it can."""
    first = groups[0]
    shorter = alone(model, [Group(first.prompt, (first.responses[0][:2],))])
    if not near(shorter, expected[0][:2]):
        return "a token's log-prob depends on later tokens, as in an encoder"
    try:
        if not _same(expected, by_padding, model, groups):
            return "in a padded batch it computes other log-probs or gradients than alone"
        model.train()
        values = by_padding(model, groups)
    except ERRORS as error:
        return f"its forward pass fails on a padded batch ({_line(error)})"
    finally:
        model.eval()
    if not near(values.detach(), expected[0]):
        return "in train mode it computes other log-probs than in eval mode, with its dropout off"
    return ""


def why_not_packed(model: Any, same: Callable[[], bool]) -> str:
    """Why a small copy cannot be packed; `same` says whether it computes the same with packed attention."""
    if not getattr(model, "_supports_attention_backend", False):
        return "transformers has no exchangeable attention for it"
    if not _full_attention(model.config.get_text_config()):
        return "some of its layers see a window of tokens only, or are not attention"
    own_attention = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        return "" if same() else "with packed attention it computes other numbers than with its own"
    except ERRORS:
        return "its forward pass does not hand packed sequences on to its attention"
    finally:
        model.config._attn_implementation = own_attention


def one_batch_limit(config: Any) -> str | None:
    """A sentence for a model whose rotary frequencies follow the longest sequence of a batch beyond some length."""
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") not in ("dynamic", "longrope"):
        return None
    limit = rope.get("original_max_position_embeddings") or text.max_position_embeddings
    return (
        f"with rope {rope['rope_type']} the longest sequence of a batch decides the log-probs of all beyond {limit} "
        f"tokens, so keep prompt.max_tokens plus max_tokens of the stage within {limit}"
    )


def _full_attention(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    return all(kind == "full_attention" for kind in kinds) if kinds else window is None


@torch.no_grad()
def decodes(model: Any, sampling: Sampling, groups: Sequence[Group], expected_N: Tensor) -> bool:
    """Whether a decoder gives these log-probs of the groups' responses, which leave the batch one after another.

    Every group has the same number of responses.
    """
    responses = [response for group in groups for response in group.responses]
    expected = torch.split(expected_N, [len(response) for response in responses])
    decoder = DECODERS[sampling](model)
    alive = list(range(len(responses)))
    try:
        logits = decoder.prefill([group.prompt for group in groups], len(groups[0].responses), 16)
        for column in range(max(map(len, responses))):
            tokens = torch.tensor([responses[row][column] for row in alive], device=model.device)
            logprobs = logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            if not near(logprobs, torch.stack([expected[row][column] for row in alive])):
                return False
            staying = [place for place, row in enumerate(alive) if len(responses[row]) > column + 1]
            if 0 < len(staying) < len(alive):
                decoder.keep(torch.tensor(staying, device=model.device))
                tokens = tokens[staying]
            alive = [alive[place] for place in staying]
            if alive:
                logits = decoder.step(tokens)
    except ERRORS:
        return False
    return True


@torch.no_grad()
def continues(model: Any, groups: Sequence[Group], expected_N: Tensor) -> bool:
    """Whether `PackedDecoder` gives the log-prob of a response's last token where the prompt's keys were kept."""
    decoder = PackedDecoder(model)
    lasts = expected_N[torch.tensor([sum(group.counts) for group in groups]).cumsum(0) - 1]
    try:
        decoder.prefill([group.prompt for group in groups], 1, 16)
        kept = [decoder.keys_of_row(row) for row in range(len(groups))]
        longer = [[*group.prompt, *group.responses[-1][:-1]] for group in groups]
        logits = decoder.prefill(longer, 1, 16, kept)
    except ERRORS:
        return False
    tokens = torch.tensor([group.responses[-1][-1] for group in groups], device=model.device)
    return near(logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0], lasts.to(logits.device))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__
