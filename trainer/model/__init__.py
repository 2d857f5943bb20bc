"""The GPT: its layers, and the pipeline of them."""
