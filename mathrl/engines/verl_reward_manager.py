"""verl's naive reward manager, which also hands a response's token ids to the reward function.

mathrl's reward has parts that count tokens and see truncation; verl's own managers pass on the text alone.
"""

from typing import Any

from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

from mathrl.engines.verl_reward import TOKENS


class WithTokens(NaiveRewardManager):  # type: ignore[misc]
    """Named by `reward.reward_manager`; used in verl's processes alone."""

    async def run_single(self, data: Any) -> dict[str, Any]:
        item = data[-1:][0]
        responses = item.batch["responses"]
        length = int(item.batch["attention_mask"][-responses.shape[-1] :].sum())
        item.non_tensor_batch["extra_info"][TOKENS] = responses[:length].tolist()
        return dict(await super().run_single(data))
