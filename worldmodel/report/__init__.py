"""Presentation of results.

    intervals   numbers with their 95 % intervals, and which kind of interval applies
    figures     the common style of figures, and figures of rollouts
    videos      truth, prediction and their difference side by side
    page        Markdown and single-file HTML from one description; page.html is its template

A leaf: it imports only `worldmodel.types` and `worldmodel.files`.
"""
