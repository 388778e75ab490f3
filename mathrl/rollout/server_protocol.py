"""The names by which a run and its vLLM servers speak of weights, beside vLLM's own endpoints."""

PATH = "/mathrl/weights"  # GET: state; POST: the fields of `SentWeights`, which replaces the weights
GENERATION, WEIGHTS = "x-mathrl-generation", "x-mathrl-weights"  # headers of answers; the second of requests too
HAS_OTHERS, NOT_AS_SENT, FAILED = 412, 409, 500
ADAPTER = "mathrl-adapter"  # the name of the model with an adapter, in requests
