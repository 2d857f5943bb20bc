"""Test the nodes of an allocation: ask them (`launch`), judge the answers (`verdict`), choose nodes (`report`)."""
