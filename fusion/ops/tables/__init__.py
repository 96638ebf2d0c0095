"""The ops of embedding variables: tables whose rows belong to keys, see `fusion.tables`."""
