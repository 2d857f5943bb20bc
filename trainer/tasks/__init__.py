"""Programs around lm-eval: one runs it in its environment, one writes its results for TensorBoard."""
