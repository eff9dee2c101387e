"""Memory and time: what makes training and decoding cheaper."""
