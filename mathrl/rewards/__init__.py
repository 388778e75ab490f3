"""Rewards: the verdict on an answer and the form of a response, weighted and routed by parameters."""

from mathrl.rewards.compose import RewardFunction, RewardInput, RewardResult, build_reward

__all__ = ["RewardFunction", "RewardInput", "RewardResult", "build_reward"]
