"""What a GPU is asked the day one is at hand: see `python -m benchmarks.gpu --help`."""
