"""Tables that are served from tiers: memory, files, a local database, a remote one.

Nothing in here needs TensorFlow, except what brings rows into its graphs.
"""

from fusion.stores.local_files import write_table as write_table
