"""Can the general picture head replace the shipped model's compositor? See docs/results/picture_head.md."""
