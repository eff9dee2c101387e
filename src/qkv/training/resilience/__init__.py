"""Resilience of training: checkpoints, run state, bad steps (loss spikes, NaN) and resuming."""
