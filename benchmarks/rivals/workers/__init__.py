"""One worker a rival: each runs in the rival's own environment, and imports of ours only rivals.common and nets."""
