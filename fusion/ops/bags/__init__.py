"""The small ops of lookups, which prune, make distinct, split and combine: DeepRec's v1 and v2."""
