"""The loops, each one flat function (rl, supervised), and the steps of RL that they call."""
