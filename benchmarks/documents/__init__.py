"""What README.md and docs/ say in tables and numbers, written and checked from results/."""
