"""Structures of word problems: what is told, what is asked, and how it is worked."""
