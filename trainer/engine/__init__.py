"""DeepSpeed's pipeline engine and everything that touches its private members."""
