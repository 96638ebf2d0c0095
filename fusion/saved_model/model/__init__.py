"""What a SavedModel is on disk: its graphs, copies of it, and folders that are written whole."""
