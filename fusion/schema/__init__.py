"""What is known of the fused ops by those who build graphs of them: names, attrs and dtypes."""
