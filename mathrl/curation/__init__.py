"""From the problems of all sources to clean, disjoint splits: duplicates, quality, contamination, and an account."""
