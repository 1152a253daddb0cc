"""How a batch of clients takes its local steps: eagerly, or by replaying recorded GPU work."""
