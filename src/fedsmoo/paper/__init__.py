"""The paper (Sun et al., ICML 2023): its experiments as TOML, the numbers it printed, and its tables, ours beside."""
