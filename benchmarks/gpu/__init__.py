"""The GPU kernels by themselves, without TensorFlow: are they right, and how fast are they?"""
