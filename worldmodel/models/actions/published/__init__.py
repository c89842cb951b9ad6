"""Action paths of published world models: their own embedders, one file a model."""
