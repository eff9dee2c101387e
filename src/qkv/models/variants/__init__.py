"""A trained model made into another: smaller weights, a larger vocabulary."""
