"""The nouns and the small tools that every room shares. Imports nothing heavy."""
