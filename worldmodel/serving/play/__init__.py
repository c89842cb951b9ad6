"""`worldmodel play`: a page to drive a world model, next to the simulator if available."""
