"""What a trained model says: tokens drawn one after the other from a checkpoint of any layout."""
