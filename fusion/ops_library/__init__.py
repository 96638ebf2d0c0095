"""Libraries of the ops and their kernels, which TensorFlow loads where there is no Python."""
