"""What each part of the desk model is worth."""
