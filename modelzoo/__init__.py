"""Models that a user would start from, with data, training, export and measurements."""

import os

# TensorFlow reads it when it is imported. Where somebody set it, that stays.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
