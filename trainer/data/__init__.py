"""From text to samples, in Megatron's formats and order."""
