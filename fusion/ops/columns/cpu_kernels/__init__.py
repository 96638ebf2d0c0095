"""Loops of the bodies for CPUs."""
