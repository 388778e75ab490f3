"""Optuna studies over RL runs: search space, trials, workers, pictures, promotion."""
