"""vLLM servers that runs sample from: their command and login, their start and end, their health and their weights."""
