"""What is known of values: their shapes and ranges, index grids, variables behind handles."""
