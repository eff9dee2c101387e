"""What the weights of a head compute, without a text: QK and OV circuits and their composition."""
