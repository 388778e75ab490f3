"""What holds a model's weights and optimizer while it learns: plain torch, DeepSpeed or FSDP, on one rank or many."""
