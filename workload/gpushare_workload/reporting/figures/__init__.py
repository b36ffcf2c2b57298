"""The pictures of the report. Each function takes results and returns a figure, or None if it has nothing to show."""
