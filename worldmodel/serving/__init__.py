"""A world model as a service, its clients, and the page to drive it."""
