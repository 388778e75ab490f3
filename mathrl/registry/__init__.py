"""The model registry: versions, the evidence about them, and the gate to champion."""
