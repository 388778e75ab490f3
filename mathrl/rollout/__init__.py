"""Problem → Completion: the engine protocol, the in-process torch engine, the sampler."""
