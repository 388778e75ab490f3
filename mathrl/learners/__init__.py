"""What holds a model's weights and optimizer while it learns: plain torch or DeepSpeed, on one process or many."""
