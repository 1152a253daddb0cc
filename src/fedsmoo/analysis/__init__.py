"""Why it works: curvature, landscapes, consistency of clients, and the bound of the paper's theorem."""
