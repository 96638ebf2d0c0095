"""NVIDIA's driver, by which kernels are launched on TensorFlow's stream."""
