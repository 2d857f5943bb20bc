"""Testing the nodes of an allocation before a training is trusted to them: asking them, judging, choosing."""
