"""DLRM: `python -m modelzoo.dlrm`."""
