"""What a run will need before it is started: memory by part, and time in a simulated cluster."""
