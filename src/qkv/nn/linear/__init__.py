"""Linear layers, the kernels that compute them faster, and matrices of few bits."""
