"""The run file: schema, loading, revisions, where a run keeps its things."""
