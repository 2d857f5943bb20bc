"""Text generation with a trained model, token by token, from a checkpoint of any layout."""
