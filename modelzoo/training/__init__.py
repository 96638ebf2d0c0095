"""Training, evaluating, exporting and measuring the models of the zoo."""
