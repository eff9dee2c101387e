"""Figures of the insight methods: attributions, edges, histories of heads."""
