"""The verbs, the run folder as an object, and the report."""
