"""Flow matching and samplers: sigma, velocity, Euler and DDIM steps. Imports only types."""
