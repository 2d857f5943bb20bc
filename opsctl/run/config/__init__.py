"""The run file: schema, loading, checks, what of it is published; where a run keeps its things."""
