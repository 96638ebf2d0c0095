"""Lookups of many columns: by stock TensorFlow, by fusion, by torch and by FBGEMM."""
