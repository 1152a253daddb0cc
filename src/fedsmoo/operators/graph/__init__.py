"""A traced graph rewritten: views made short, and what stands behind a layer made part of it."""
