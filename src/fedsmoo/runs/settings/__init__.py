"""How settings are declared, checked and read from TOML."""
