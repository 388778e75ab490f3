"""The loops, each one flat function: sft, rl; and what keeps them alive: checkpoint, backend, stopping."""
