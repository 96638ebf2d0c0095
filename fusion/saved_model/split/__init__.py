"""A model cut at its lookups: one that gives embeddings of ids, and one of all behind them.

ids -> lookups -> dense -> outputs      becomes  lookup: ids -> embeddings
dense:  embeddings, other inputs -> outputs
tables: a file of the rows of each table
"""
