"""Probing: linear probes on the activations of every layer, with control tasks."""
