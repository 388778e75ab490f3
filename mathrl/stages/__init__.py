"""The verbs: each module parses, wires and runs one stage."""
