"""What people see of results, one of each.

    intervals   numbers with their 95 % intervals, and which interval is taken where
    figures     the one style of figures, and those of rollouts
    videos      truth beside prediction and their difference
    page        Markdown and single-file HTML from one description; `page_style` is its look

A leaf: it imports only `worldmodel.types` and `worldmodel.files`.
"""
