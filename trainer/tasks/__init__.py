"""Programs around lm-eval: one that runs in its environment, one that draws what came of it."""
