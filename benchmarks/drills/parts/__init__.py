"""What drills share: programs to disturb, ways to disturb them, and hostile input."""
