"""Where a prediction comes from: parts of the model, tokens of the input, edges between parts."""
