"""process_reward_model: scores of reasoning steps; a step of recipes. The work is that of `reward_model`."""

from mathrl.stages.command import main
from mathrl.stages.reward_model import work

if __name__ == "__main__":
    main("process_reward_model", work)
