"""Rewards: the verdict on an answer and the form of a response, weighted and routed by parameters."""

from mathrl.rewards.compose import Reward, RewardFunction, RewardInput, build_reward

__all__ = ["Reward", "RewardFunction", "RewardInput", "build_reward"]
