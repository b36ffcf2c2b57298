"""What the page shows, made of objects and metrics (pure), and kept by revisions."""
