"""Linear layers and the kernels that compute them faster: Triton, oneDNN and int8."""
