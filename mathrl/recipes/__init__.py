"""Recipes: several steps of training and evaluation, from a file to a graph of DVC stages."""
