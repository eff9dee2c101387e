"""Language models and what pre-training gives them."""
