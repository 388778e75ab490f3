"""Tensors in, tensors out: advantages, policy loss, KL, aggregation, entropy."""
