"""The warning signs of a training run, diagnosed while it trains."""
