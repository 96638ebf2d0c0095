"""The graph: views of it, edits of it, and what is known of its ops and shapes."""
