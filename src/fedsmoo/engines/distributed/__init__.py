"""One run on several processes: ranks, and the engine that shares a cohort among them."""
