"""Pictures from an observational context and from contexts in which concepts were intervened on."""
