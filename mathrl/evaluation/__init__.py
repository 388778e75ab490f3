"""pass@k, maj@k, intervals, paired tests, benchmarks and what is drawn and said of them."""
