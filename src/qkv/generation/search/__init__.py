"""Search over whole sequences: beam search, diverse and stochastic, with one model or several."""
