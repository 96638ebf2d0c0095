"""The version of the distribution, the only place that names it, and those of TensorFlow."""

__version__ = "0.1.0"

TENSORFLOW = ("2.18", "2.21")
"""The first and the last release of TensorFlow that the fused ops run in, as in setup.cfg."""
