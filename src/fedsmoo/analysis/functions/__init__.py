"""What measurements compute: plain functions on flat vectors, which know no run."""
