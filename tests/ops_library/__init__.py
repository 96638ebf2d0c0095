"""Tests of libraries of ops."""
