"""The GPT: knows tensor-parallel layers, nothing of pipelines or engines."""
