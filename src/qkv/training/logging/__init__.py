"""Logging of training: metrics.jsonl, console progress, TensorBoard, Weights & Biases."""
