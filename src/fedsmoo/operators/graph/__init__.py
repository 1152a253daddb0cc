"""A traced graph rewritten: views made short, what stands behind a layer made part of it; and made ready to run."""
