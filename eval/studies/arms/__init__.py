"""Do two arms compose that a world model never saw moving together?"""
