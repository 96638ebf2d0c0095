"""Wide and deep: `python -m modelzoo.wide_deep`, and the demo."""
