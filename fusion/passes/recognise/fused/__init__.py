"""Lookups that are made of this package's ops."""
