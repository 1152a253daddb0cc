"""Who comes in: certificates and keys, and the gate that nodes come through."""
