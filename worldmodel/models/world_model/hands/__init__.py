"""Where the hands are in a picture, what they look like, and frames composed with them."""
