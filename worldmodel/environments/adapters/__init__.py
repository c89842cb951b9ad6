"""The worlds under the interfaces of other projects, matched by shape; none of them is a dependency."""
