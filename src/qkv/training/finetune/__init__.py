"""Fine-tuning: tasks with a head, chat and translation; freezing, LoRA adapters and metrics."""
