"""Batches for each objective: causal, masked, paired, labelled and chat, in a seeded order."""
