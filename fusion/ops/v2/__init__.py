"""The v2 family: ops that prune, make ids distinct, partition them and combine rows."""
