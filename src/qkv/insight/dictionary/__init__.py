"""A sparse autoencoder on one layer: features, and the texts in which they are active."""
