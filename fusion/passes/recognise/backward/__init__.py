"""Gradients of lookups."""
