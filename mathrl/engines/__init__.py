"""Training engines of others: the same data, prompts, rewards, records and checkpoints, another trainer."""
