"""Training systems: DDP, FSDP, mixed precision, gradient checkpointing, CUDA graphs."""
