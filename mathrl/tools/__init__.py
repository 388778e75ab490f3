"""Tools that a response calls while it is sampled: a sandbox that runs the model's Python code."""
