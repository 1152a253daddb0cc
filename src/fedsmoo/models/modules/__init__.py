"""Any ``nn.Module``: how it is made, with which weights it starts, what it is called with and what it returns."""
