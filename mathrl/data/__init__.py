"""Problems: from files, the hub and generators to clean, disjoint splits, mixtures, prompts and SFT sets."""
