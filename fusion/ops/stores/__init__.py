"""The op of table stores, see `fusion.stores`."""
