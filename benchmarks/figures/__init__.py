"""Pictures of README.md and docs/ that no command of the package draws."""
