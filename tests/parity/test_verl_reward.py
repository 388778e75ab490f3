"""verl 0.9.1 loads our verifier from the line of docs/verifier.md."""

import re
from pathlib import Path
from types import SimpleNamespace

PAGE = Path(__file__).parents[2] / "docs" / "verifier.md"


def test_verl_loads_the_function_that_the_page_names() -> None:
    from verl.trainer.ppo.reward import get_custom_reward_fn

    settings = dict(re.findall(r"^ +reward\.custom_reward_function\.(\w+)=(\S+)", PAGE.read_text(), re.M))
    function = get_custom_reward_fn(SimpleNamespace(reward={"custom_reward_function": settings}))
    row = {"data_source": "gsm8k", "ground_truth": "0.5", "extra_info": {"index": 0}}
    assert function(solution_str="so \\boxed{1/2}", **row) == 1.0
    assert function(solution_str="so \\boxed{1/3}", **row) == 0.0
