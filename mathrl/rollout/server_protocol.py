"""The names by which a run and its vLLM servers speak of weights, beside vLLM's own endpoints."""

PATH = "/mathrl/weights"  # GET: state; POST: the fields of `SentWeights`, which replaces the weights
# vLLM's own, by which weights come that are no files.
INIT, START, UPDATE = "/init_weight_transfer_engine", "/start_weight_update", "/update_weights"
FINISH = "/finish_weight_update"
GENERATION, WEIGHTS = "x-mathrl-generation", "x-mathrl-weights"  # headers of answers; the second of requests too
HAS_OTHERS, NOT_AS_SENT, FAILED = 412, 409, 500
ADAPTER = "mathrl-adapter"  # the name of the model with an adapter, in requests
