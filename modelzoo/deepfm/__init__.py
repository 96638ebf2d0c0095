"""DeepFM: `python -m modelzoo.deepfm`."""
